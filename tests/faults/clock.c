/* Adds the seconds in the file CLOCK_SHIM to the time of day: simulates a change of the system clock. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static long offset_s(void) {
    static volatile long *shared;
    if (!shared) {
        const char *path = getenv("CLOCK_SHIM");
        int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        if (fd < 0) return 0;
        void *place = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);
        if (place == MAP_FAILED) return 0;
        shared = place;
    }
    return *shared;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, now);
    if (result == 0 && id == CLOCK_REALTIME) now->tv_sec += offset_s();
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *place) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (place) *place = precise.tv_sec;
    return precise.tv_sec;
}
