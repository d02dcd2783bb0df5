/* A stand-in for libnccl: the ranks of one machine sum over a file that they share. Like NCCL, it finds ranks with other versions
 * or with one device, notices a rank that has ended, and waits without a limit for one that has not. */
#define _GNU_SOURCE
#include "stand_in.h"
#include <dlfcn.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

enum { MOST = 64, SLOT = 1 << 18, SUCCESS = 0, SYSTEM_ERROR = 2, INTERNAL = 3, USAGE = 5, REMOTE = 6, IN_PROGRESS = 7 };

struct rank {
    int version, ordinal;
    char device[160];
    /* How often the rank has come to a meeting of all. */
    unsigned came;
};

struct memory {
    unsigned joined;
    struct rank ranks[MOST];
    float slots[MOST][SLOT];
};

typedef struct comm {
    struct memory *memory;
    char path[128];
    /* A rank locks its byte of the file: the system gives it up when the process ends, on whichever host. */
    int file, size, rank, connected, failed, ended;
    unsigned meetings;
} *comm_t;

typedef struct {
    char internal[128];
} id_t_;

static char said[256];

static void *driver(const char *name)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    return library ? dlsym(library, name) : NULL;
}

static int says(int code, const char *text)
{
    snprintf(said, sizeof said, "%s", text);
    return code;
}

EXPORT int ncclGetVersion(int *version)
{
    CALL("ncclGetVersion");
    *version = stand_in_number("STAND_IN_NCCL", 22809);
    return 0;
}

EXPORT const char *ncclGetErrorString(int code)
{
    static const char *names[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
                                  "invalid argument", "invalid usage", "remote process exited or there was a network error",
                                  "NCCL operation in progress"};
    return code >= 0 && code < 8 ? names[code] : "unknown result code";
}

EXPORT const char *ncclGetLastError(comm_t comm)
{
    (void)comm;
    return said;
}

/* As NCCL, which takes only the interfaces that the variable leaves. */
static int has_interface(void)
{
    const char *names = getenv("NCCL_SOCKET_IFNAME");
    char path[300];
    if (!names || !*names || *names == '^')
        return 1;
    snprintf(path, sizeof path, "/sys/class/net/%s", *names == '=' ? names + 1 : names);
    return access(path, F_OK) == 0;
}

EXPORT int ncclGetUniqueId(id_t_ *id)
{
    CALL("ncclGetUniqueId");
    /* A folder that all hosts see. */
    const char *folder = getenv("STAND_IN_SHARED");
    if (!has_interface())
        return says(INTERNAL, "Bootstrap : no socket interface found");
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "%s/stand-in-nccl.XXXXXX", folder && *folder ? folder : "/tmp");
    int file = mkstemp(id->internal);
    if (file < 0 || ftruncate(file, sizeof(struct memory)))
        return says(SYSTEM_ERROR, "Call to mkstemp failed");
    close(file);
    return 0;
}

EXPORT int ncclCommInitRankConfig(comm_t *made, int size, id_t_ id, int rank, void *config)
{
    (void)config;
    CALL("ncclCommInitRankConfig");
    if (!has_interface())
        return says(INTERNAL, "Bootstrap : no socket interface found");
    int file = open(id.internal, O_RDWR | O_CLOEXEC);
    if (file < 0 || size > MOST)
        return says(SYSTEM_ERROR, "socketStartConnect: Connect to the root failed");
    comm_t comm = calloc(1, sizeof *comm);
    comm->memory = mmap(NULL, sizeof(struct memory), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    comm->file = file;
    struct flock own_byte = {F_WRLCK, SEEK_SET, rank, 1, 0};
    fcntl(file, F_OFD_SETLK, &own_byte);
    snprintf(comm->path, sizeof comm->path, "%s", id.internal);
    comm->size = size;
    comm->rank = rank;
    struct rank *own = &comm->memory->ranks[rank];
    own->version = stand_in_number("STAND_IN_NCCL", 22809);
    int (*current)(void) = driver("stand_in_device");
    own->ordinal = current ? current() : 0;
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    const char *chosen = getenv("NCCL_HOSTID");
    snprintf(own->device, sizeof own->device, "%.60s/%d", chosen ? chosen : host, own->ordinal);
    __atomic_add_fetch(&comm->memory->joined, 1, __ATOMIC_SEQ_CST);
    *made = comm;
    return IN_PROGRESS;
}

/* As NCCL with NCCL_DEBUG=INFO: STAND_IN_NETWORK is its network between hosts (Socket). */
static void tell(comm_t comm, int ordinal)
{
    const char *file = getenv("NCCL_DEBUG_FILE"), *network = getenv("STAND_IN_NETWORK");
    FILE *to = file ? fopen(file, "a") : stdout;
    if (!to)
        return;
    network = network ? network : "Socket";
    fprintf(to, "stand-in:1:1 [%d] NCCL INFO NET/%s : Using [0]lo:127.0.0.1<0>\n", ordinal, network);
    if (comm->size > 1)
        fprintf(to, "stand-in:1:1 [%d] NCCL INFO Channel 00/0 : %d[0] -> %d[0] [send] via %s%s/0\n", ordinal, comm->rank,
                (comm->rank + 1) % comm->size, getenv("NCCL_HOSTID") ? "NET/" : "SHM/direct", getenv("NCCL_HOSTID") ? network : "");
    if (file)
        fclose(to);
    else
        fflush(to);
}

static int connected(comm_t comm)
{
    struct rank *ranks = comm->memory->ranks, *own = &ranks[comm->rank];
    if (__atomic_load_n(&comm->memory->joined, __ATOMIC_SEQ_CST) < (unsigned)comm->size)
        return IN_PROGRESS;
    unlink(comm->path);
    for (int other = 0; other < comm->size; other++) {
        if (ranks[other].version != own->version) {
            snprintf(said, sizeof said, "Mismatched NCCL version detected : rank %d version %d rank %d version %d", comm->rank,
                     own->version, other, ranks[other].version);
            return USAGE;
        }
        if (other != comm->rank && strcmp(ranks[other].device, own->device) == 0) {
            snprintf(said, sizeof said, "Duplicate GPU detected : rank %d and rank %d both on CUDA device %d0", comm->rank, other,
                     own->ordinal + 6);
            return USAGE;
        }
    }
    comm->connected = 1;
    if (getenv("NCCL_DEBUG") && strcmp(getenv("NCCL_DEBUG"), "INFO") == 0)
        tell(comm, own->ordinal);
    return SUCCESS;
}

EXPORT int ncclCommGetAsyncError(comm_t comm, int *state)
{
    CALL("ncclCommGetAsyncError");
    if (!comm->connected && !comm->failed) {
        int code = connected(comm);
        if (code != SUCCESS && code != IN_PROGRESS)
            comm->failed = code;
        *state = code;
        return 0;
    }
    *state = __atomic_load_n(&comm->failed, __ATOMIC_SEQ_CST);
    return 0;
}

/* Waits for all ranks. Returns 0 if one has ended, or this rank gives up. */
static int meet(comm_t comm)
{
    struct rank *ranks = comm->memory->ranks;
    unsigned meeting = ++comm->meetings;
    __atomic_store_n(&ranks[comm->rank].came, meeting, __ATOMIC_SEQ_CST);
    for (int other = 0; other < comm->size; other++) {
        for (long turn = 0; __atomic_load_n(&ranks[other].came, __ATOMIC_SEQ_CST) < meeting; turn++) {
            if (__atomic_load_n(&comm->ended, __ATOMIC_SEQ_CST))
                return 0;
            if (turn > 1000) {
                struct timespec nap = {0, 200000};
                nanosleep(&nap, NULL);
                struct flock byte = {F_WRLCK, SEEK_SET, other, 1, 0};
                if (fcntl(comm->file, F_OFD_GETLK, &byte) == 0 && byte.l_type == F_UNLCK) {
                    says(REMOTE, "socketProgress: Connection closed by remote peer");
                    __atomic_store_n(&comm->failed, REMOTE, __ATOMIC_SEQ_CST);
                    /* Like a kernel of NCCL, until the communicator is aborted. */
                    while (!__atomic_load_n(&comm->ended, __ATOMIC_SEQ_CST))
                        nanosleep(&nap, NULL);
                    return 0;
                }
            }
        }
    }
    return 1;
}

struct sum {
    const float *from;
    float *into;
    size_t count;
    comm_t comm;
};

static void sum(void *pointer)
{
    struct sum *task = pointer;
    comm_t comm = task->comm;
    const char *stuck = getenv("STAND_IN_STUCK");
    while (stuck && atoi(stuck) == comm->rank && !__atomic_load_n(&comm->ended, __ATOMIC_SEQ_CST))
        usleep(1000);
    for (size_t start = 0; start < task->count || start == 0; start += SLOT) {
        size_t count = task->count - start < SLOT ? task->count - start : SLOT;
        memcpy(comm->memory->slots[comm->rank], task->from + start, count * sizeof(float));
        if (!meet(comm))
            return;
        for (size_t k = 0; k < count; k++) {
            float total = 0;
            for (int rank = 0; rank < comm->size; rank++)
                total += comm->memory->slots[rank][k];
            task->into[start + k] = total;
        }
        if (!meet(comm))
            return;
    }
}

EXPORT int ncclAllReduce(const void *from, void *into, size_t count, int type, int operation, comm_t comm, void *stream)
{
    CALL("ncclAllReduce");
    if (type != 7 || operation != 0)
        return says(4, "the stand-in sums f32");
    void (*enqueue)(void *, void (*)(void *), const void *, size_t) = driver("stand_in_enqueue");
    struct sum task = {from, into, count, comm};
    enqueue(stream, sum, &task, sizeof task);
    return SUCCESS;
}

static int end(comm_t comm)
{
    void (*drain)(void) = driver("stand_in_drain");
    __atomic_store_n(&comm->ended, 1, __ATOMIC_SEQ_CST);
    if (drain)
        drain();
    unlink(comm->path);
    close(comm->file);
    munmap(comm->memory, sizeof(struct memory));
    return SUCCESS;
}

EXPORT int ncclCommAbort(comm_t comm)
{
    CALL("ncclCommAbort");
    return end(comm);
}

EXPORT int ncclCommDestroy(comm_t comm)
{
    CALL("ncclCommDestroy");
    return end(comm);
}
