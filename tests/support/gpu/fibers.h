/* Runs a kernel's threads on one thread of the CPU: each is a fiber, which gives way where it waits for others. Blocks run one after
 * the other, but for those of a cluster, which run together. */
#include "device.h"
#include <setjmp.h>
#include <stdint.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { MOST_PARAMETERS = 16, STACK = 32 * 1024 };

typedef void (*kernel_function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                                uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

struct kernel {
    kernel_function function;
    int parameters, is_cluster;
};

struct launch {
    struct kernel *kernel;
    struct stand_in_dim grid, block;
    unsigned shared;
    uint64_t parameters[MOST_PARAMETERS];
};

/* A meeting of threads: a number that goes up once all have come. */
struct meeting {
    unsigned come, number;
};

struct warp {
    struct meeting meeting;
    unsigned shown[2][32];
};

struct block {
    unsigned left;
    struct meeting meeting;
    struct warp warps[32];
    char *shared;
};

struct fiber {
    /* First, so that a pointer to it is one to the fiber. */
    struct stand_in_thread seen;
    struct block *block;
    struct warp *warp;
    unsigned lane;
    int is_done, has_stack;
    jmp_buf place;
};

static struct stand_in_thread *fibers_current;
static struct fiber *fibers;
static char *fiber_stacks;
static jmp_buf fiber_scheduler;
static struct launch *fiber_launch;
static struct meeting fiber_cluster;
static unsigned fiber_cluster_left;
static struct block *fiber_blocks;

static struct fiber *fiber_own(void)
{
    return (struct fiber *)fibers_current;
}

/* Lets the others run. */
static void fiber_yield(void)
{
    struct fiber *own = fiber_own();
    if (!_setjmp(own->place))
        _longjmp(fiber_scheduler, 1);
}

/* Waits until `all` threads have come. */
static void fiber_meet(struct meeting *meeting, const unsigned *all)
{
    unsigned number = meeting->number;
    meeting->come++;
    while (meeting->number == number) {
        /* Threads that have returned do not come. */
        if (meeting->come >= *all) {
            meeting->come = 0;
            meeting->number++;
            return;
        }
        fiber_yield();
    }
}

static void fiber_sync_block(void)
{
    struct block *block = fiber_own()->block;
    fiber_meet(&block->meeting, &block->left);
}

static void fiber_sync_cluster(void)
{
    fiber_meet(&fiber_cluster, &fiber_cluster_left);
}

static unsigned fiber_exchange(unsigned own, unsigned lane)
{
    static const unsigned all = 32;
    struct fiber *fiber = fiber_own();
    unsigned *shown = fiber->warp->shown[fiber->warp->meeting.number % 2];
    shown[fiber->lane] = own;
    fiber_meet(&fiber->warp->meeting, &all);
    return shown[lane % 32];
}

static void *fiber_of_block(void *place, unsigned block)
{
    char *own = fiber_own()->block->shared;
    return fiber_blocks[block].shared + ((char *)place - own);
}

/* A fiber stays on its stack after a kernel, for the next one: a new context costs several system calls. */
static void fiber_main(void)
{
    for (;;) {
        uint64_t *p = fiber_launch->parameters;
        fiber_launch->kernel->function(p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9], p[10], p[11], p[12], p[13], p[14],
                                       p[15]);
        struct fiber *own = fiber_own();
        own->is_done = 1;
        own->block->left--;
        fiber_cluster_left--;
        fiber_yield();
    }
}

/* Runs these blocks to their end. */
static void fibers_finish(unsigned threads)
{
    /* Static, because a fiber jumps back into this function. */
    static unsigned left, k;
    left = threads;
    while (left) {
        left = 0;
        for (k = 0; k < threads; k++) {
            struct fiber *fiber = &fibers[k];
            if (fiber->is_done)
                continue;
            left++;
            fibers_current = &fiber->seen;
            if (_setjmp(fiber_scheduler))
                continue;
            if (fiber->has_stack)
                _longjmp(fiber->place, 1);
            fiber->has_stack = 1;
            ucontext_t context;
            getcontext(&context);
            context.uc_stack.ss_sp = fiber_stacks + (size_t)k * STACK;
            context.uc_stack.ss_size = STACK;
            context.uc_link = NULL;
            makecontext(&context, fiber_main, 0);
            setcontext(&context);
        }
    }
}

static void fibers_run(void *data)
{
    struct launch *launch = data;
    struct stand_in_dim grid = launch->grid, size = launch->block;
    unsigned threads = size.x * size.y * size.z, blocks = grid.x * grid.y * grid.z;
    unsigned together = launch->kernel->is_cluster ? blocks : 1;
    static unsigned room;
    if (room < threads * together) {
        room = threads * together;
        free(fibers);
        fibers = calloc(room, sizeof *fibers);
        fiber_stacks = mmap(NULL, (size_t)room * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    fiber_launch = launch;
    fiber_blocks = calloc(together, sizeof *fiber_blocks);
    for (unsigned k = 0; k < together; k++)
        fiber_blocks[k].shared = calloc(1, launch->shared + 16);
    for (unsigned first = 0; first < blocks; first += together) {
        memset(&fiber_cluster, 0, sizeof fiber_cluster);
        fiber_cluster_left = threads * together;
        for (unsigned b = 0; b < together; b++) {
            struct block *block = &fiber_blocks[b];
            unsigned at = first + b;
            block->left = threads;
            memset(&block->meeting, 0, sizeof block->meeting);
            memset(block->warps, 0, sizeof block->warps);
            for (unsigned t = 0; t < threads; t++) {
                struct fiber *fiber = &fibers[b * threads + t];
                fiber->seen = (struct stand_in_thread){
                    {t % size.x, t / size.x % size.y, t / size.x / size.y},
                    {at % grid.x, at / grid.x % grid.y, at / grid.x / grid.y},
                    size, grid, b, block->shared, fiber_sync_block, fiber_sync_cluster, fiber_exchange, fiber_of_block};
                fiber->block = block;
                fiber->warp = &block->warps[t / 32];
                fiber->lane = t % 32;
                fiber->is_done = 0;
            }
        }
        fibers_finish(threads * together);
    }
    for (unsigned k = 0; k < together; k++)
        free(fiber_blocks[k].shared);
    free(fiber_blocks);
}
