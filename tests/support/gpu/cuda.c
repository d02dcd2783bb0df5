/* A stand-in for libcuda: the devices' memory is the host's, kernels are compiled for the CPU, and one worker thread does what is put
 * into streams, in order. It tells nothing of speed. */
#define _GNU_SOURCE
#include "stand_in.h"
#include "fibers.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>

enum { INVALID = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, BAD_DEVICE = 101, NOT_FOUND = 500, NOT_READY = 600 };

/* ---- What streams do. */

struct operation {
    struct operation *next;
    void (*run)(void *);
    char data[];
};

struct list {
    struct operation *first, **last;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct list queue = {NULL, &queue.first}, captured;
static int is_capturing, is_busy, has_worker, device;

static void *work(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!queue.first)
            pthread_cond_wait(&changed, &lock);
        struct operation *one = queue.first;
        queue.first = one->next;
        if (!queue.first)
            queue.last = &queue.first;
        is_busy = 1;
        pthread_mutex_unlock(&lock);
        one->run(one->data);
        free(one);
        pthread_mutex_lock(&lock);
        is_busy = 0;
        pthread_cond_broadcast(&changed);
    }
    return NULL;
}

EXPORT void stand_in_enqueue(void *stream, void (*run)(void *), const void *data, size_t size)
{
    (void)stream;
    struct operation *one = malloc(sizeof *one + size);
    one->next = NULL;
    one->run = run;
    memcpy(one->data, data, size);
    pthread_mutex_lock(&lock);
    struct list *list = is_capturing ? &captured : &queue;
    *list->last = one;
    list->last = &one->next;
    if (!has_worker && !is_capturing) {
        pthread_t thread;
        has_worker = pthread_create(&thread, NULL, work, NULL) == 0;
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* Waits until all is done. */
EXPORT void stand_in_drain(void)
{
    pthread_mutex_lock(&lock);
    while (queue.first || is_busy)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

EXPORT int stand_in_device(void)
{
    return device;
}

/* ---- The driver and its devices. */

static int devices(void)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int count = stand_in_number("STAND_IN_DEVICES", 1), shown = 0;
    if (!visible)
        return count;
    for (const char *at = visible; *at; at++)
        shown += at == visible || *at == ',';
    return shown < count ? shown : count;
}

/* The number in the host of one that the process sees. */
static int of_host(int ordinal)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (!visible)
        return ordinal;
    for (; ordinal > 0 && visible; ordinal--) {
        visible = strchr(visible, ',');
        visible = visible ? visible + 1 : NULL;
    }
    return visible ? atoi(visible) : 0;
}

EXPORT int cuGetErrorName(int code, const char **name)
{
    static char text[64];
    const struct {
        int code;
        const char *name;
    } names[] = {{INVALID, "CUDA_ERROR_INVALID_VALUE"}, {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"}, {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
                 {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"}, {BAD_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
                 {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"}, {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
                 {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}};
    snprintf(text, sizeof text, "CUDA_ERROR_%d", code);
    *name = text;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        if (names[k].code == code)
            *name = names[k].name;
    return 0;
}

EXPORT int cuGetErrorString(int code, const char **text)
{
    (void)code;
    *text = "as the stand-in was told";
    return 0;
}

EXPORT int cuInit(unsigned flags)
{
    (void)flags;
    CALL("cuInit");
    return devices() > 0 ? 0 : NO_DEVICE;
}

EXPORT int cuDriverGetVersion(int *version)
{
    CALL("cuDriverGetVersion");
    *version = stand_in_number("STAND_IN_DRIVER", 13000);
    return 0;
}

EXPORT int cuDeviceGetCount(int *count)
{
    CALL("cuDeviceGetCount");
    *count = devices();
    return 0;
}

EXPORT int cuDeviceGet(int *handle, int ordinal)
{
    CALL("cuDeviceGet");
    if (ordinal < 0 || ordinal >= devices())
        return BAD_DEVICE;
    *handle = ordinal;
    return 0;
}

EXPORT int cuDeviceGetName(char *name, int length, int handle)
{
    (void)handle;
    CALL("cuDeviceGetName");
    snprintf(name, (size_t)length, "%s", getenv("STAND_IN_NAME") ? getenv("STAND_IN_NAME") : "Stand-in GPU");
    return 0;
}

EXPORT int cuDeviceGetUuid_v2(char *uuid, int handle)
{
    CALL("cuDeviceGetUuid");
    memset(uuid, 0, 16);
    uuid[15] = (char)(of_host(handle) + 1);
    return 0;
}

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int handle)
{
    (void)handle;
    CALL("cuDeviceTotalMem");
    *bytes = (size_t)8 << 30;
    return 0;
}

EXPORT int cuMemGetInfo_v2(size_t *available, size_t *bytes)
{
    CALL("cuMemGetInfo");
    *bytes = (size_t)8 << 30;
    *available = *bytes - ((size_t)stand_in_number("STAND_IN_USED", 0) << 20);
    return 0;
}

EXPORT int cuDeviceGetAttribute(int *value, int which, int handle)
{
    int capability = stand_in_number("STAND_IN_CAPABILITY", 90);
    CALL("cuDeviceGetAttribute");
    /* The numbers of cuda.h: PCI bus, PCI device, PCI domain, compute capability. There are no pools of memory. */
    *value = which == 33 ? of_host(handle) + 1 : which == 75 ? capability / 10 : which == 76 ? capability % 10 : 0;
    return 0;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int handle)
{
    CALL("cuDevicePrimaryCtxRetain");
    device = of_host(handle);
    *context = (void *)(intptr_t)(handle + 1);
    return 0;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int handle)
{
    (void)handle;
    CALL("cuDevicePrimaryCtxRelease");
    return 0;
}

static __thread void *current;

EXPORT int cuCtxSetCurrent(void *context)
{
    CALL("cuCtxSetCurrent");
    current = context;
    return 0;
}

EXPORT int cuCtxGetCurrent(void **context)
{
    *context = current;
    return 0;
}

EXPORT int cuCtxSynchronize(void)
{
    CALL("cuCtxSynchronize");
    stand_in_drain();
    return 0;
}

/* ---- Memory. */

EXPORT int cuMemAlloc_v2(uintptr_t *at, size_t bytes)
{
    CALL("cuMemAlloc");
    void *memory = malloc(bytes);
    *at = (uintptr_t)memory;
    return memory ? 0 : OUT_OF_MEMORY;
}

EXPORT int cuMemFree_v2(uintptr_t at)
{
    CALL("cuMemFree");
    stand_in_drain();
    free((void *)at);
    return 0;
}

struct copy {
    void *to;
    const void *from;
    size_t bytes;
    int value;
};

static void copy(void *data)
{
    struct copy *task = data;
    memcpy(task->to, task->from, task->bytes);
}

static void fill(void *data)
{
    struct copy *task = data;
    memset(task->to, task->value, task->bytes);
}

EXPORT int cuMemsetD8Async(uintptr_t to, unsigned char value, size_t bytes, void *stream)
{
    CALL("cuMemsetD8Async");
    struct copy task = {(void *)to, NULL, bytes, value};
    stand_in_enqueue(stream, fill, &task, sizeof task);
    return 0;
}

/* Memory of the host that is not pinned may be changed once the call returns. */
EXPORT int cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t bytes, void *stream)
{
    CALL("cuMemcpyHtoDAsync");
    struct copy task = {(void *)to, from, bytes, 0};
    stand_in_enqueue(stream, copy, &task, sizeof task);
    stand_in_drain();
    return 0;
}

EXPORT int cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t bytes, void *stream)
{
    CALL("cuMemcpyDtoHAsync");
    struct copy task = {to, (const void *)from, bytes, 0};
    stand_in_enqueue(stream, copy, &task, sizeof task);
    stand_in_drain();
    return 0;
}

EXPORT int cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, void *stream)
{
    CALL("cuMemcpyDtoDAsync");
    struct copy task = {(void *)to, (const void *)from, bytes, 0};
    stand_in_enqueue(stream, copy, &task, sizeof task);
    return 0;
}

/* ---- Streams, events and graphs. */

EXPORT int cuStreamCreate(void **stream, unsigned flags)
{
    (void)flags;
    CALL("cuStreamCreate");
    *stream = malloc(1);
    return 0;
}

EXPORT int cuStreamDestroy_v2(void *stream)
{
    CALL("cuStreamDestroy");
    stand_in_drain();
    free(stream);
    return 0;
}

EXPORT int cuStreamSynchronize(void *stream)
{
    (void)stream;
    CALL("cuStreamSynchronize");
    stand_in_drain();
    return 0;
}

EXPORT int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    return 0;
}

EXPORT int cuStreamIsCapturing(void *stream, int *state)
{
    (void)stream;
    *state = is_capturing;
    return 0;
}

EXPORT int cuEventCreate(void **event, unsigned flags)
{
    (void)flags;
    CALL("cuEventCreate");
    *event = calloc(1, sizeof(struct timespec) + sizeof(int));
    return 0;
}

struct event {
    struct timespec at;
    int is_done;
};

static void reach(void *data)
{
    struct event *event = *(struct event **)data;
    clock_gettime(CLOCK_MONOTONIC, &event->at);
    __atomic_store_n(&event->is_done, 1, __ATOMIC_SEQ_CST);
}

EXPORT int cuEventRecord(struct event *event, void *stream)
{
    CALL("cuEventRecord");
    if (is_capturing)
        return 0;
    __atomic_store_n(&event->is_done, 0, __ATOMIC_SEQ_CST);
    stand_in_enqueue(stream, reach, &event, sizeof event);
    return 0;
}

EXPORT int cuEventQuery(struct event *event)
{
    CALL("cuEventQuery");
    return __atomic_load_n(&event->is_done, __ATOMIC_SEQ_CST) ? 0 : NOT_READY;
}

EXPORT int cuEventSynchronize(struct event *event)
{
    (void)event;
    CALL("cuEventSynchronize");
    stand_in_drain();
    return 0;
}

static int elapsed(float *milliseconds, struct event *from, struct event *to)
{
    *milliseconds = (float)((to->at.tv_sec - from->at.tv_sec) * 1e3 + (to->at.tv_nsec - from->at.tv_nsec) / 1e6);
    return 0;
}

EXPORT int cuEventElapsedTime(float *milliseconds, struct event *from, struct event *to)
{
    return elapsed(milliseconds, from, to);
}

EXPORT int cuEventElapsedTime_v2(float *milliseconds, struct event *from, struct event *to)
{
    return elapsed(milliseconds, from, to);
}

EXPORT int cuEventDestroy_v2(struct event *event)
{
    stand_in_drain();
    free(event);
    return 0;
}

EXPORT int cuStreamBeginCapture_v2(void *stream, int mode)
{
    (void)stream, (void)mode;
    CALL("cuStreamBeginCapture");
    captured.first = NULL;
    captured.last = &captured.first;
    is_capturing = 1;
    return 0;
}

EXPORT int cuStreamEndCapture(void *stream, void **graph)
{
    (void)stream;
    is_capturing = 0;
    CALL("cuStreamEndCapture");
    *graph = captured.first;
    captured.first = NULL;
    return 0;
}

EXPORT int cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long flags)
{
    (void)flags;
    CALL("cuGraphInstantiate");
    *made = graph;
    return 0;
}

struct nested {
    struct operation *first;
};

static void replay(void *data)
{
    for (struct operation *one = ((struct nested *)data)->first; one; one = one->next)
        one->run(one->data);
}

EXPORT int cuGraphLaunch(void *graph, void *stream)
{
    CALL("cuGraphLaunch");
    struct nested task = {graph};
    stand_in_enqueue(stream, replay, &task, sizeof task);
    return 0;
}

EXPORT int cuGraphExecDestroy(void *graph)
{
    (void)graph;
    CALL("cuGraphExecDestroy");
    stand_in_drain();
    return 0;
}

EXPORT int cuGraphDestroy(struct operation *graph)
{
    CALL("cuGraphDestroy");
    while (graph) {
        struct operation *next = graph->next;
        free(graph);
        graph = next;
    }
    return 0;
}

/* ---- Kernels. */

struct module {
    void *library;
    char *source;
};

/* A library with the kernels of a source. Like NVIDIA's driver, it keeps what it has compiled: in the folder that all hosts see. */
static void *compiled(const char *source)
{
    const char *folder = getenv("STAND_IN_SHARED"), *header = getenv("STAND_IN_HEADER");
    uint64_t hash = 14695981039346656037u;
    for (const char *at = source; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 1099511628211u;
    FILE *file = fopen(header, "r");
    if (!file)
        return NULL;
    for (int letter; (letter = fgetc(file)) != EOF;)
        hash = (hash ^ (unsigned char)letter) * 1099511628211u;
    fclose(file);
    char kept[300], path[300], object[310], command[1200];
    snprintf(kept, sizeof kept, "%s/kernels-%016llx.so", folder, (unsigned long long)hash);
    if (access(kept, R_OK) == 0)
        return dlopen(kept, RTLD_NOW | RTLD_LOCAL);
    /* Files of its own, of which one gets the name once it is whole: other ranks may compile the same. */
    snprintf(path, sizeof path, "%s/new-XXXXXX.c", folder);
    int opened = mkstemps(path, 2);
    if (opened < 0)
        return NULL;
    snprintf(object, sizeof object, "%s.so", path);
    file = fdopen(opened, "w");
    for (const char *at = source; *at; at++) {
        if (strncmp(at, "extern \"C\"", 10) == 0)
            at += 10;
        fputc(*at, file);
    }
    fclose(file);
    /* The loader does not need the program's settings. */
    snprintf(command, sizeof command,
             "env -u LD_LIBRARY_PATH gcc -std=gnu11 -O2 -w -ffp-contract=off -shared -fPIC -include '%s' '%s' -o '%s' -lm",
             header, path, object);
    int failed = system(command) || rename(object, kept);
    unlink(path);
    return failed ? NULL : dlopen(kept, RTLD_NOW | RTLD_LOCAL);
}

EXPORT int cuModuleLoadData(struct module **made, const char *source)
{
    CALL("cuModuleLoadData");
    struct module *module = calloc(1, sizeof *module);
    module->library = compiled(source);
    module->source = strdup(source);
    if (!module->library)
        return 218;
    void (*begin)(struct stand_in_thread **) = dlsym(module->library, "stand_in_begin");
    begin(&fibers_current);
    *made = module;
    return 0;
}

EXPORT int cuModuleUnload(struct module *module)
{
    CALL("cuModuleUnload");
    stand_in_drain();
    dlclose(module->library);
    free(module->source);
    free(module);
    return 0;
}

/* How many parameters a kernel has, and whether its blocks are a cluster. */
static int declared(const char *source, const char *name, int *is_cluster)
{
    for (const char *at = source; (at = strstr(at, "void "));) {
        at += 5;
        *is_cluster = 0;
        for (;;) {
            at += strspn(at, " \n\t");
            size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
            const char *open = at + length;
            if (*open != '(' || length == 0)
                break;
            int is_name = strlen(name) == length && strncmp(at, name, length) == 0, depth = 0, commas = 0;
            if (strncmp(at, "__cluster_dims__", 16) == 0)
                *is_cluster = 1;
            do {
                depth += *open == '(' ? 1 : *open == ')' ? -1 : 0;
                commas += *open == ',' && depth == 1;
                open++;
            } while (depth && *open);
            if (is_name)
                return commas + 1;
            if (strncmp(at, "__", 2) != 0)
                break;
            at = open;
        }
    }
    return -1;
}

EXPORT int cuModuleGetFunction(struct kernel **made, struct module *module, const char *name)
{
    CALL("cuModuleGetFunction");
    struct kernel *kernel = calloc(1, sizeof *kernel);
    kernel->function = (kernel_function)dlsym(module->library, name);
    kernel->parameters = declared(module->source, name, &kernel->is_cluster);
    if (!kernel->function || kernel->parameters < 0 || kernel->parameters > MOST_PARAMETERS)
        return NOT_FOUND;
    *made = kernel;
    return 0;
}

EXPORT int cuFuncSetAttribute(void *kernel, int which, int value)
{
    (void)kernel, (void)which, (void)value;
    CALL("cuFuncSetAttribute");
    return 0;
}

static void launch(void *data)
{
    fibers_run(data);
}

EXPORT int cuLaunchKernel(struct kernel *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *stream, void **parameters, void **extra)
{
    (void)extra;
    CALL("cuLaunchKernel");
    struct launch task = {kernel, {gx, gy, gz}, {bx, by, bz}, shared, {0}};
    if ((size_t)bx * by * bz == 0 || (size_t)bx * by * bz > 1024)
        return INVALID;
    /* Pointers and whole numbers, the only ones that the kernels take. */
    for (int k = 0; k < kernel->parameters; k++)
        memcpy(&task.parameters[k], parameters[k], sizeof(uint64_t));
    stand_in_enqueue(stream, launch, &task, sizeof task);
    return 0;
}
