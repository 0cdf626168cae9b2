/* A stand-in for libnvidia-ml.so.1: the functions that GreenServe uses, over boards kept in a file.
 *
 * The file named by NVML_STANDIN is mapped and shared, so that locked clocks and energy counters belong to the "driver"
 * and outlive every process, and tests inject faults while others read. Layout: as in __init__.py. Names, signatures and
 * codes are NVML's (nvml.h); power is idle + load x (peak - idle) x clock / top clock, and energy is its integral.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_GPUS 16
#define MAX_SLICES 8
#define MAX_LINKS 36

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };

/* What a fault or a delay can be put on; the order is __init__.py's. */
enum { HANDLE, ENERGY, POWER, INSTANT_POWER, CLOCK, UTILISATION, MEMORY, TEMPERATURE, REASONS, ECC, MIG, NVLINK, OFFERED,
       LOCK, RESET, NAME, CAPABILITY, CORES, BUS, PCIE, CALLS };

typedef struct {
    uint64_t energy_uj;   /* counted up to since_ns */
    uint64_t since_ns;    /* of the monotonic clock, which is the machine's own */
    uint64_t memory_total_bytes, memory_used_bytes, reasons, ecc_errors;
    uint32_t idle_mw, peak_mw, load_percent;
    uint32_t min_mhz, max_mhz, step_mhz, memory_mhz, locked_mhz;
    uint32_t temperature_c, mig, slices, links, lost, refresh_ms;
    uint32_t major, minor, cores, bus_bits, pcie_generation, pcie_lanes;
    int32_t fault[CALLS];
    uint32_t delay_ms[CALLS], calls[CALLS];
    char uuid[80], name[96];
} gpu_t;

typedef struct {
    uint32_t size, count;
    int32_t init_fault;
    uint32_t inits;
    char driver[80];
    gpu_t gpus[MAX_GPUS];
} board_t;

static board_t *board;
static int board_fd = -1;
static int references;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char handles[MAX_GPUS], slices[MAX_GPUS * MAX_SLICES]; /* only their addresses matter */

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* flock goes with its process, so a killed one leaves nothing locked. */
static void lock_board(void) { pthread_mutex_lock(&mutex); flock(board_fd, LOCK_EX); }
static void unlock_board(void) { flock(board_fd, LOCK_UN); pthread_mutex_unlock(&mutex); }

static uint32_t clock_mhz(const gpu_t *g) { return g->locked_mhz ? g->locked_mhz : g->max_mhz; }

static uint32_t power_mw(const gpu_t *g) {
    return g->idle_mw
        + (uint32_t)((uint64_t)(g->peak_mw - g->idle_mw) * g->load_percent / 100 * clock_mhz(g) / g->max_mhz);
}

static uint64_t energy_uj(const gpu_t *g, uint64_t at_ns) { /* mW x ns = 1e-6 uJ */
    return g->energy_uj + (uint64_t)((__uint128_t)power_mw(g) * (at_ns - g->since_ns) / 1000000u);
}

/* The GPU behind a handle once its injected delay has passed or was taken back, or NULL with the fault to answer. */
static gpu_t *called(void *device, int call, int *fault) {
    *fault = UNINITIALIZED;
    if (!references || !board) return NULL;
    ptrdiff_t index = (char *)device - handles;
    ptrdiff_t slice = (char *)device - slices;
    if (slice >= 0 && slice < MAX_GPUS * MAX_SLICES) index = slice / MAX_SLICES; /* a slice answers for its board */
    *fault = INVALID_ARGUMENT;
    if (index < 0 || index >= (ptrdiff_t)board->count) return NULL;
    gpu_t *g = &board->gpus[index];
    __atomic_add_fetch(&g->calls[call], 1, __ATOMIC_RELAXED);
    const struct timespec wait = {0, 1000000L};
    for (uint32_t ms = 0; ms < __atomic_load_n(&g->delay_ms[call], __ATOMIC_RELAXED); ms++) nanosleep(&wait, NULL);
    *fault = g->lost ? GPU_IS_LOST : g->fault[call];
    return *fault ? NULL : g;
}

#define CALLED(device, call)                      \
    int fault;                                    \
    gpu_t *g = called(device, call, &fault);      \
    if (!g) return fault

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    const char *path = getenv("NVML_STANDIN");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    struct stat status;
    if (fd < 0 || fstat(fd, &status) || (size_t)status.st_size < sizeof(board_t)) {
        if (fd >= 0) close(fd);
        return DRIVER_NOT_LOADED;
    }
    board_t *mapped = mmap(NULL, sizeof(board_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED || mapped->size != sizeof(board_t)) { close(fd); return DRIVER_NOT_LOADED; }
    mapped->inits++;
    if (mapped->init_fault) { int fault = mapped->init_fault; munmap(mapped, sizeof(board_t)); close(fd); return fault; }
    pthread_mutex_lock(&mutex);
    if (board_fd >= 0) close(board_fd); /* an older mapping stays: a slow call may be in it */
    board = mapped;
    board_fd = fd;
    references++;
    pthread_mutex_unlock(&mutex);
    return SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    if (!references) return UNINITIALIZED;
    references--;
    return SUCCESS;
}

const char *nvmlErrorString(int code) { (void)code; return "an injected fault"; }

static int text(char *out, unsigned length, const char *value) {
    if (strlen(value) + 1 > length) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    return references ? text(version, length, board->driver) : UNINITIALIZED;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!references) return UNINITIALIZED;
    *count = board->count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (!references) return UNINITIALIZED;
    if (index >= board->count) return INVALID_ARGUMENT;
    CALLED(&handles[index], HANDLE);
    *device = &handles[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    if (!references) return UNINITIALIZED;
    for (unsigned i = 0; i < board->count; i++)
        if (!strcmp(board->gpus[i].uuid, uuid)) return nvmlDeviceGetHandleByIndex_v2(i, device);
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) { CALLED(device, HANDLE); return text(uuid, length, g->uuid); }
int nvmlDeviceGetName(void *device, char *name, unsigned length) { CALLED(device, NAME); return text(name, length, g->name); }

int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    CALLED(device, ENERGY);
    lock_board();
    uint64_t at_ns = now_ns(), refresh_ns = (uint64_t)g->refresh_ms * 1000000u;
    if (refresh_ns) at_ns = at_ns / refresh_ns * refresh_ns; /* the counter stands still between refreshes */
    *millijoules = energy_uj(g, at_ns < g->since_ns ? g->since_ns : at_ns) / 1000u;
    unlock_board();
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    CALLED(device, POWER);
    *milliwatts = power_mw(g);
    return SUCCESS;
}

typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency_us;
    int type, result;
    union { double d; unsigned ui; unsigned long long ull; } value;
} field_t;

int nvmlDeviceGetFieldValues(void *device, int count, field_t *values) {
    for (int i = 0; i < count; i++) {
        int fault;
        gpu_t *g = called(device, INSTANT_POWER, &fault);
        if (fault == GPU_IS_LOST || fault == UNINITIALIZED || fault == INVALID_ARGUMENT) return fault;
        values[i].type = 1; /* unsigned int */
        values[i].result = !g ? fault : values[i].field == 186 || values[i].field == 185 ? SUCCESS : NOT_SUPPORTED;
        if (g) values[i].value.ui = power_mw(g);
    }
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz) {
    CALLED(device, CLOCK);
    *mhz = type == 2 ? g->memory_mhz : clock_mhz(g);
    return SUCCESS;
}

int nvmlDeviceGetMaxClockInfo(void *device, int type, unsigned *mhz) {
    CALLED(device, CLOCK);
    *mhz = type == 2 ? g->memory_mhz : g->max_mhz;
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    CALLED(device, CAPABILITY);
    *major = (int)g->major;
    *minor = (int)g->minor;
    return SUCCESS;
}

int nvmlDeviceGetNumGpuCores(void *device, unsigned *cores) { CALLED(device, CORES); *cores = g->cores; return SUCCESS; }
int nvmlDeviceGetMemoryBusWidth(void *device, unsigned *bits) { CALLED(device, BUS); *bits = g->bus_bits; return SUCCESS; }

int nvmlDeviceGetMaxPcieLinkGeneration(void *device, unsigned *generation) {
    CALLED(device, PCIE);
    *generation = g->pcie_generation;
    return SUCCESS;
}

int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *lanes) {
    CALLED(device, PCIE);
    *lanes = g->pcie_lanes;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned *gpu_and_memory) {
    CALLED(device, UTILISATION);
    if (g->mig) return NOT_SUPPORTED; /* as with real MIG */
    gpu_and_memory[0] = g->load_percent;
    gpu_and_memory[1] = g->load_percent / 2;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *total_free_used) {
    CALLED(device, MEMORY);
    total_free_used[0] = g->memory_total_bytes;
    total_free_used[1] = g->memory_total_bytes - g->memory_used_bytes;
    total_free_used[2] = g->memory_used_bytes;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    (void)sensor;
    CALLED(device, TEMPERATURE);
    *celsius = g->temperature_c;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) {
    CALLED(device, REASONS);
    *reasons = g->reasons;
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *count) {
    (void)type; (void)counter;
    CALLED(device, ECC);
    *count = g->ecc_errors;
    return SUCCESS;
}

int nvmlDeviceGetPowerManagementDefaultLimit(void *device, unsigned *milliwatts) {
    CALLED(device, POWER);
    *milliwatts = g->peak_mw;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    CALLED(device, MIG);
    *current = *pending = g->mig;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) {
    CALLED(device, MIG);
    *count = g->mig ? MAX_SLICES - 1 : 0;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **slice) {
    CALLED(device, MIG);
    if (!g->mig || index >= g->slices) return NOT_FOUND;
    *slice = &slices[(g - board->gpus) * MAX_SLICES + index];
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active) {
    CALLED(device, NVLINK);
    if (link >= MAX_LINKS || g->links == 0) return NOT_SUPPORTED;
    if (link >= g->links) return INVALID_ARGUMENT;
    *active = 1;
    return SUCCESS;
}

int nvmlDeviceGetSupportedMemoryClocks(void *device, unsigned *count, unsigned *mhz) {
    CALLED(device, OFFERED);
    unsigned room = *count;
    *count = 1;
    if (!mhz || room < 1) return INSUFFICIENT_SIZE;
    mhz[0] = g->memory_mhz;
    return SUCCESS;
}

int nvmlDeviceGetSupportedGraphicsClocks(void *device, unsigned memory_mhz, unsigned *count, unsigned *mhz) {
    CALLED(device, OFFERED);
    if (memory_mhz != g->memory_mhz) return NOT_FOUND;
    unsigned room = *count, n = (g->max_mhz - g->min_mhz) / g->step_mhz + 1;
    *count = n;
    if (!mhz || room < n) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < n; i++) mhz[i] = g->max_mhz - i * g->step_mhz;
    return SUCCESS;
}

/* Energy so far is counted at the clock until now. */
static void set_clock(gpu_t *g, unsigned mhz) {
    lock_board();
    uint64_t at_ns = now_ns();
    g->energy_uj = energy_uj(g, at_ns);
    g->since_ns = at_ns;
    g->locked_mhz = mhz;
    unlock_board();
}

int nvmlDeviceSetGpuLockedClocks(void *device, unsigned min_mhz, unsigned max_mhz) {
    CALLED(device, LOCK);
    if (min_mhz > max_mhz || max_mhz < g->min_mhz || max_mhz > g->max_mhz) return INVALID_ARGUMENT;
    set_clock(g, max_mhz);
    return SUCCESS;
}

int nvmlDeviceResetGpuLockedClocks(void *device) {
    CALLED(device, RESET);
    set_clock(g, 0);
    return SUCCESS;
}
