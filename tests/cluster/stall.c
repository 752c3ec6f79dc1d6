/* A mock of a shared folder whose server does not answer: every call on a file below STALL_UNDER waits while
 * the file STALL_FLAGS/<host> exists. As with a hard NFS mount, only SIGKILL ends such a wait. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static int is_stalled(void) {
    const char *flags = getenv("STALL_FLAGS");
    char host[64], flag[PATH_MAX];
    if (!flags || gethostname(host, sizeof host)) return 0;
    snprintf(flag, sizeof flag, "%s/%s", flags, host);
    return syscall(SYS_faccessat, AT_FDCWD, flag, F_OK) == 0;
}

static int is_below(const char *path) {
    const char *under = getenv("STALL_UNDER");
    return under && path && strncmp(path, under, strlen(under)) == 0;
}

static void wait_for_path(const char *path) {
    struct timespec rest = {0, 50000000L};
    while (is_below(path) && is_stalled()) nanosleep(&rest, NULL);
}

static void wait_for_fd(int fd) {
    char link[64], path[PATH_MAX];
    ssize_t size;
    if (fd < 0 || !is_stalled()) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    size = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (size <= 0) return;
    path[size] = 0;
    wait_for_path(path);
}

static void wait_for_place(int dir, const char *path) {
    if (path && path[0] == '/') wait_for_path(path);
    else wait_for_fd(dir);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPEN(name)                                                          \
    int name(const char *path, int flags, ...) {                            \
        va_list rest; mode_t mode;                                          \
        va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest);   \
        wait_for_path(path);                                                \
        return REAL(name)(path, flags, mode);                               \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                        \
    int name(int dir, const char *path, int flags, ...) {                   \
        va_list rest; mode_t mode;                                          \
        va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest);   \
        wait_for_place(dir, path);                                          \
        return REAL(name)(dir, path, flags, mode);                          \
    }
OPENAT(openat)
OPENAT(openat64)

#define ON_PATH(type, name, parameters, arguments) \
    type name parameters { wait_for_path(path); return REAL(name) arguments; }
#define ON_PLACE(type, name, parameters, arguments) \
    type name parameters { wait_for_place(dir, path); return REAL(name) arguments; }
#define ON_FD(type, name, parameters, arguments) \
    type name parameters { wait_for_fd(fd); return REAL(name) arguments; }

ON_PATH(FILE *, fopen, (const char *path, const char *mode), (path, mode))
ON_PATH(FILE *, fopen64, (const char *path, const char *mode), (path, mode))
ON_PATH(DIR *, opendir, (const char *path), (path))
ON_PATH(int, stat, (const char *path, struct stat *about), (path, about))
ON_PATH(int, stat64, (const char *path, struct stat64 *about), (path, about))
ON_PATH(int, lstat, (const char *path, struct stat *about), (path, about))
ON_PATH(int, lstat64, (const char *path, struct stat64 *about), (path, about))
ON_PATH(int, access, (const char *path, int mode), (path, mode))
ON_PATH(int, mkdir, (const char *path, mode_t mode), (path, mode))
ON_PATH(int, rmdir, (const char *path), (path))
ON_PATH(int, unlink, (const char *path), (path))
ON_PATH(int, rename, (const char *path, const char *to), (path, to))
ON_PLACE(int, fstatat, (int dir, const char *path, struct stat *about, int flags), (dir, path, about, flags))
ON_PLACE(int, fstatat64, (int dir, const char *path, struct stat64 *about, int flags), (dir, path, about, flags))
ON_PLACE(int, statx, (int dir, const char *restrict path, int flags, unsigned mask, struct statx *restrict about),
         (dir, path, flags, mask, about))
ON_PLACE(int, faccessat, (int dir, const char *path, int mode, int flags), (dir, path, mode, flags))
ON_PLACE(int, mkdirat, (int dir, const char *path, mode_t mode), (dir, path, mode))
ON_PLACE(int, unlinkat, (int dir, const char *path, int flags), (dir, path, flags))
ON_PLACE(int, renameat, (int dir, const char *path, int to_dir, const char *to), (dir, path, to_dir, to))
ON_FD(ssize_t, read, (int fd, void *data, size_t size), (fd, data, size))
ON_FD(ssize_t, pread, (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
ON_FD(ssize_t, pread64, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at))
ON_FD(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
ON_FD(ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count))
ON_FD(int, fsync, (int fd), (fd))
ON_FD(int, fdatasync, (int fd), (fd))
ON_FD(int, flock, (int fd, int operation), (fd, operation))
ON_FD(int, ftruncate, (int fd, off_t size), (fd, size))
ON_FD(int, ftruncate64, (int fd, off64_t size), (fd, size))
