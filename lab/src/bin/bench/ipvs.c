/*
 * IPVS for a kernel that has none: whatever is asked of it is done. keepalived checks nothing without IPVS, and this is loaded
 * into it so that it does. It keeps keepalived from asking over netlink, and answers the older calls in the kernel's place.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

/* The options of IPVS (include/uapi/linux/ip_vs.h); the second one read says its version and the size of its table. */
#define FIRST (64 + 1024 + 64)
#define INFO (FIRST + 1)

static int is_ipvs(int level, int name) {
    return level == IPPROTO_IP && name >= FIRST && name < FIRST + 64;
}

int getsockopt(int fd, int level, int name, void *value, socklen_t *length) {
    static int (*real)(int, int, int, void *, socklen_t *);
    if (!real) real = dlsym(RTLD_NEXT, "getsockopt");
    if (!is_ipvs(level, name)) return real(fd, level, name, value, length);
    unsigned info[] = { 0x010201, 4096, 0 };
    memset(value, 0, *length);
    if (name == INFO) memcpy(value, info, *length < sizeof info ? *length : sizeof info);
    return 0;
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t length) {
    static int (*real)(int, int, int, const void *, socklen_t);
    if (!real) real = dlsym(RTLD_NEXT, "setsockopt");
    return is_ipvs(level, name) ? 0 : real(fd, level, name, value, length);
}

int genl_ctrl_resolve(void *socket, const char *family) {
    static int (*real)(void *, const char *);
    if (!real) real = dlsym(RTLD_NEXT, "genl_ctrl_resolve");
    /* NLE_OBJ_NOTFOUND */
    return strcmp(family, "IPVS") ? real(socket, family) : -12;
}
