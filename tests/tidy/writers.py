"""Who writes the fields of whose classes, by mypy's types: an assignment, and a container that is changed in its place.

A field is at home in the package of the class that declares it. What is written under another name (`runs = node.runs;
runs.clear()`) or by a function that is handed the container is not seen.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path

from mypy import build
from mypy.find_sources import create_source_list
from mypy.nodes import (
    Argument,
    AssignmentStmt,
    CallExpr,
    DelStmt,
    Expression,
    ForStmt,
    IndexExpr,
    ListExpr,
    MemberExpr,
    MypyFile,
    NameExpr,
    Node,
    OperatorAssignmentStmt,
    StarExpr,
    Statement,
    StrExpr,
    TupleExpr,
    TypeInfo,
    Var,
    WithStmt,
)
from mypy.options import Options
from mypy.types import (
    AnyType,
    CallableType,
    Instance,
    TupleType,
    Type,
    TypeType,
    TypeVarType,
    UnionType,
    get_proper_type,
)
from mypy.version import __version__ as mypy_version

CONTAINERS = ("builtins.", "collections.", "typing.", "_collections_abc.")
CHANGES = frozenset((
    "add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "extendleft", "insert",
    "intersection_update", "move_to_end", "pop", "popitem", "popleft", "remove", "reverse", "rotate", "setdefault",
    "sort", "subtract", "symmetric_difference_update", "update",
))  # fmt: skip
# By whom a result was found: another mypy or another reader begins anew.
_VERSION = [mypy_version, Path(__file__).read_text()]
UNKNOWN = "?"  # The owner, where mypy does not know what object is written to.


@dataclass(frozen=True, order=True)
class Violation:
    """A write to a field from outside the package of the class that declares it."""

    owner: str  # The class, with its module.
    field: str
    module: str  # Who writes,
    line: int  # and where.
    how: str  # "assigned", "deleted", or the change: "append", "[…] ="
    by_heir: bool = False  # To its own `self`, in a class that inherits the field.

    @property
    def in_place(self) -> bool:
        return self.how not in ("assigned", "deleted")

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.owner.rpartition('.')[2]}.{self.field} {self.how}"


def package(module: str) -> str:
    return module.rpartition(".")[0]


def foreign(found: list[Violation], room: Callable[[str], str] = package) -> list[Violation]:
    """The writes from one room to a field of a class of another room.

    `room` says in which room a module stands: its package, unless told otherwise. An heir may write to its own `self`.
    """
    known = [one for one in found if one.owner != UNKNOWN and not one.by_heir]
    return [one for one in known if room(one.module) != room(package(one.owner))]


def writes(tree: Path, tops: tuple[str, ...], cache_dir: Path | None = None) -> list[Violation]:
    """Every write to a field of a class of these directories, whoever writes, and to what is UNKNOWN to mypy.

    With a `cache_dir`, modules are read again only where mypy checks them again: because they or what they import have
    changed. What a module writes depends on nothing else, as its errors do not.
    """
    found = {} if cache_dir is None else _taken(cache_dir / "found.json")
    if cache_dir is not None and not found:
        shutil.rmtree(cache_dir, ignore_errors=True)
    result = _checked(tree, tops, cache_dir)
    for name in [name for name in result.graph if name.partition(".")[0] in tops]:
        if name in result.manager.rechecked_modules:
            found[name] = _of_module(name, result, tops)
    found = {name: found[name] for name in result.graph if name in found}
    if cache_dir is not None:
        told = {name: [astuple(one) for one in of_module] for name, of_module in found.items()}
        (cache_dir / "found.json").write_text(json.dumps({"by": _VERSION, "found": told}))
    del result
    gc.freeze()  # A million nodes that need one another: the collector would walk through them to the end.
    return sorted(one for of_module in found.values() for one in of_module)


def _taken(file: Path) -> dict[str, list[Violation]]:
    """What was found the last time, by module, and the file is gone: who is interrupted before the end begins anew."""
    try:
        known = json.loads(file.read_text())
        file.unlink()
    except (FileNotFoundError, ValueError):
        return {}
    if known["by"] != _VERSION:
        return {}
    return {name: [Violation(*one) for one in of_module] for name, of_module in known["found"].items()}


def _of_module(name: str, result: build.BuildResult, tops: tuple[str, ...]) -> list[Violation]:
    file = result.files[name]
    # The module that a package's __init__ is stands in that package.
    reader = _Writes(f"{name}.__init__" if file.is_package_init_file() else name, result.types, tops)
    for node in _nodes(file):
        reader.visit(node)
    return list(reader.found)


def _checked(tree: Path, tops: tuple[str, ...], cache_dir: Path | None) -> build.BuildResult:
    """The types of every expression. Other people's packages stay unread: the fields are ours."""
    options = Options()
    options.python_version = (3, 11)
    options.export_types = options.preserve_asts = True
    options.incremental, options.cache_dir = cache_dir is not None, str(cache_dir or os.devnull)
    options.python_executable = None  # Or it looks for what that one has installed, torch included.
    options.no_site_packages = options.ignore_missing_imports = True
    options.check_untyped_defs = True
    before = Path.cwd()
    gc.collect()  # What died before is still collected, before mypy and `writes` freeze what lives.
    os.chdir(tree)  # mypy names modules from where it stands.
    gc.disable()  # What it makes lives until it is read: the collector would only walk through it.
    try:
        return build.build(create_source_list([top for top in tops if Path(top).exists()], options), options)
    finally:
        gc.enable()
        os.chdir(before)


def _nodes(file: MypyFile) -> Iterator[Node]:
    """Every statement and expression. mypy's own visitors cannot be inherited from outside its compiled modules."""
    seen: set[int] = set()
    waiting: list[object] = [file.defs]
    while waiting:
        here = waiting.pop()
        if isinstance(here, list | tuple):
            waiting += here
        elif isinstance(here, Statement | Expression | Argument) and id(here) not in seen:
            seen.add(id(here))
            yield here
            waiting += [getattr(here, name, None) for name in _parts(type(here))]  # type: ignore[arg-type]


@cache
def _parts(kind: type[Node]) -> tuple[str, ...]:
    """Where a node of this kind keeps the nodes below it. `node` is what a name means, and that stands elsewhere."""
    kinds = kind.__mro__
    named = {name for one in kinds for name in (*getattr(one, "__mypyc_attrs__", ()), *getattr(one, "__slots__", ()))}
    return tuple(sorted(named - {"node"}))


class _Writes:
    """The writes of one module."""

    def __init__(self, module: str, types: dict[Expression, Type], tops: tuple[str, ...]) -> None:
        self.module = module
        self.types = types
        self.tops = tops
        self.found: set[Violation] = set()

    def visit(self, node: Node) -> None:
        match node:
            case AssignmentStmt(lvalues=targets):
                for target in targets:
                    self.written(target, "assigned")
            case OperatorAssignmentStmt(lvalue=target) | ForStmt(index=target):
                self.written(target, "assigned")
            case WithStmt(target=given):
                for target in filter(None, given):
                    self.written(target, "assigned")
            case DelStmt(expr=target):
                self.written(target, "deleted")
            case CallExpr(callee=MemberExpr(name=name, expr=container)) if name in CHANGES:
                if self.is_container(container):
                    self.changed(container, name)
            case CallExpr(callee=NameExpr(fullname="builtins.setattr" | "builtins.delattr" as name), args=args):
                field = args[1].value if isinstance(args[1], StrExpr) else UNKNOWN
                self.tell(args[0], field, node.line, "assigned" if name.endswith("setattr") else "deleted")

    def written(self, target: Expression, how: str) -> None:
        if isinstance(target, TupleExpr | ListExpr):
            for item in target.items:
                self.written(item, how)
        elif isinstance(target, StarExpr):
            self.written(target.expr, how)
        elif isinstance(target, IndexExpr):
            self.changed(target.base, "del […]" if how == "deleted" else "[…] =")
        elif isinstance(target, MemberExpr):
            self.tell(target.expr, target.name, target.line, how)

    def changed(self, container: Expression, how: str) -> None:
        """A container that a field holds has changed, or one that stands in that container."""
        while isinstance(container, IndexExpr):
            container = container.base
        if isinstance(container, MemberExpr):
            self.tell(container.expr, container.name, container.line, how)

    def is_container(self, expression: Expression) -> bool:
        infos = list(_classes(self.types.get(expression)))
        return any(info is None or info.fullname.startswith(CONTAINERS) for info in infos)

    def tell(self, holder: Expression, field: str, line: int, how: str) -> None:
        is_self = isinstance(holder, NameExpr) and isinstance(holder.node, Var) and holder.node.is_self
        for info in _classes(self.types.get(holder)):
            owner = UNKNOWN if info is None else _declares(info, field)
            if owner == UNKNOWN or owner.partition(".")[0] in self.tops:
                by_heir = is_self and info is not None and owner != info.fullname
                self.found.add(Violation(owner, field, self.module, line, how, by_heir))


def _classes(type_: Type | None) -> Iterator[TypeInfo | None]:
    """What classes this may be an instance of, or is; None: anything."""
    if type_ is None:
        return  # mypy has seen that nobody comes here.
    match get_proper_type(type_):
        case AnyType():
            yield None
        case Instance(type=info):
            yield info
        case UnionType(items=items):
            for item in items:
                yield from _classes(item)
        case TupleType(partial_fallback=fallback):
            yield fallback.type
        case TypeVarType(upper_bound=bound):
            yield from _classes(bound)
        case TypeType(item=item):
            yield from _classes(item)
        case CallableType(ret_type=made) as callable_ if callable_.is_type_obj():
            yield from _classes(made)


def _declares(info: TypeInfo, field: str) -> str:
    """The class that first declares the field: an heir that sets it writes what is not its own."""
    return next((base.fullname for base in reversed(info.mro) if field in base.names), info.fullname)
