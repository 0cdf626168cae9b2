/* A wall clock that can be turned, for all processes of a mount namespace: preloaded, it adds the seconds that stand in
   a file to what the kernel says. The second number of the file is for gateways alone, as if they were on another host.
   The monotonic clock, and all that sleeps and waits by it, stay as they are. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long *offset_s;
static int is_gateway;

__attribute__((constructor)) static void find_offset(void) {
    static char words[4096];
    int file = open(OFFSET_FILE, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    void *page = mmap(NULL, 2 * sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page == MAP_FAILED) return;
    file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        long length = read(file, words, sizeof words);
        close(file);
        is_gateway = length > 0 && memmem(words, length, GATEWAY, sizeof GATEWAY - 1) != NULL;
    }
    offset_s = page;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && offset_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += is_gateway ? offset_s[1] : offset_s[0];
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME_COARSE, &exact);
    if (now) *now = exact.tv_sec;
    return exact.tv_sec;
}
