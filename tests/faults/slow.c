/* Delays every write to a regular file and every sync: simulates a slow file system. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static void wait_ms(const char *name) {
    const char *text = getenv(name);
    long ms = text ? atol(text) : 0;
    struct timespec rest = {ms / 1000, (ms % 1000) * 1000000L};
    nanosleep(&rest, NULL);
}

static int is_file(int fd) {
    struct stat about;
    return fstat(fd, &about) == 0 && S_ISREG(about.st_mode);
}

typedef ssize_t (*write_fn)(int, const void *, size_t);
typedef int (*sync_fn)(int);

ssize_t write(int fd, const void *data, size_t size) {
    write_fn real = (write_fn)dlsym(RTLD_NEXT, "write");
    if (is_file(fd)) wait_ms("SLOW_WRITE_MS");
    return real(fd, data, size);
}

int fsync(int fd) {
    sync_fn real = (sync_fn)dlsym(RTLD_NEXT, "fsync");
    wait_ms("SLOW_SYNC_MS");
    return real(fd);
}

int fdatasync(int fd) {
    sync_fn real = (sync_fn)dlsym(RTLD_NEXT, "fdatasync");
    wait_ms("SLOW_SYNC_MS");
    return real(fd);
}
