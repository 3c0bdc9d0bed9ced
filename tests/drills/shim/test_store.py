"""Both stores under one contract: the dictionary of one process, and the real TCPStore of torch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from trainer_shim.saving.store import KeyStore, MemoryStore, StoreLostError, TorchStore

Open = Callable[[], KeyStore]


@pytest.fixture(params=["memory", "tcp"])
def open_store(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Return how one more rank opens the same store."""
    if request.param == "memory":
        shared = MemoryStore()
        yield lambda: shared
        return
    dist = pytest.importorskip("torch.distributed", reason="needs torch")
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield lambda: TorchStore(server.clone(), "costgov/test")


def test_an_absent_key_is_none_and_nobody_waits(open_store: Open) -> None:
    assert open_store().get("absent") is None


def test_what_one_rank_sets_another_gets(open_store: Open) -> None:
    first, second = open_store(), open_store()
    first.set("k", "früh")
    first.set("k", "spät")
    # A set is not answered: on another connection it may be overtaken. A read on its own comes behind it.
    assert first.get("k") == "spät"
    assert second.get("k") == "spät"


def test_the_first_to_settle_stays(open_store: Open) -> None:
    first, second = open_store(), open_store()
    assert first.settle("k", "one") == "one"
    assert second.settle("k", "two") == "one"
    assert second.get("k") == "one"


def test_a_counter_counts_every_rank_once_however_they_race(open_store: Open) -> None:
    stores = [open_store() for _ in range(4)]
    seen: list[int] = []

    def post(store: KeyStore) -> None:
        seen.extend(store.add("count", 1) for _ in range(25))

    threads = [threading.Thread(target=post, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(seen) == list(range(1, 101)), "exactly one caller sees each value: the last one decides"
    assert stores[0].add("count", 0) == 100


def test_a_dead_server_is_a_lost_store() -> None:
    dist = pytest.importorskip("torch.distributed", reason="needs torch")
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = TorchStore(server.clone(), "costgov/test")
    store.set("k", "v")
    del server
    with pytest.raises(StoreLostError):
        store.get("k")
