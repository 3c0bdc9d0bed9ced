/* A wall clock that is off by WALL_CLOCK_OFF_S seconds in one program, loaded before libc. Every other clock is true.
   libfaketime 0.9.10 breaks sleeps until a moment of CLOCK_MONOTONIC, as Python 3.11 sleeps: a governor's start then
   takes ten seconds longer. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long off_s(void) {
    const char *said = getenv("WALL_CLOCK_OFF_S");
    return said ? atol(said) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = syscall(SYS_clock_gettime, clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        at->tv_sec += off_s();
    return failed;
}

time_t time(time_t *also) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (also)
        *also = at.tv_sec;
    return at.tv_sec;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec found;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &found);
    at->tv_sec = found.tv_sec;
    at->tv_usec = found.tv_nsec / 1000;
    return 0;
}
