/* What CUDA C has beyond C, for a compiler for CPUs: the driver's stand-in puts this before the source of kernels. Each thread of a
 * block is a fiber, and a function that waits for others lets them run. */
#include <math.h>
#include <stddef.h>
#include <string.h>

struct stand_in_dim {
    unsigned x, y, z;
};

struct stand_in_thread {
    struct stand_in_dim thread_index, block_index, block_dim, grid_dim;
    unsigned cluster_rank;
    void *shared;
    void (*sync_block)(void), (*sync_cluster)(void);
    /* Shows a number to the threads of the warp, and returns that of another lane. */
    unsigned (*exchange)(unsigned own, unsigned lane);
    /* The same place in another block of the cluster. */
    void *(*of_block)(void *place, unsigned block);
};

static struct stand_in_thread **stand_in_current;
void stand_in_begin(struct stand_in_thread **current)
{
    stand_in_current = current;
}
#define STAND_IN (*stand_in_current)

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
/* The blocks that have such memory run one after the other. */
#define __shared__ static
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define threadIdx (STAND_IN->thread_index)
#define blockIdx (STAND_IN->block_index)
#define blockDim (STAND_IN->block_dim)
#define gridDim (STAND_IN->grid_dim)
#define __syncthreads() STAND_IN->sync_block()
#define cluster_sync() STAND_IN->sync_cluster()
#define cluster_rank() STAND_IN->cluster_rank
#define dynamic_shared_memory() STAND_IN->shared
#define cluster_store(place, block, x) (*(float *)STAND_IN->of_block(place, block) = (x))
#define __expf expf
#define __logf logf

static inline unsigned stand_in_lane(void)
{
    struct stand_in_dim t = threadIdx, d = blockDim;
    return (t.x + d.x * (t.y + d.y * t.z)) % 32;
}

static inline float __shfl_xor_sync(unsigned mask, float x, int other)
{
    unsigned bits;
    (void)mask;
    memcpy(&bits, &x, sizeof bits);
    bits = STAND_IN->exchange(bits, stand_in_lane() ^ (unsigned)other);
    memcpy(&x, &bits, sizeof bits);
    return x;
}
