// What a rank computes on its GPU, in CUDA C that is also C: NVRTC compiles it when a run starts, after a head that defines
//
//   PIXELS, CLASSES, HIDDEN  the lengths of a sample, of its logits, and of the mlp's hidden layer (0: the linear model)
//   SAMPLES                  of the training set
//   RANK, RANKS              of the job
//   BATCH, WHOLE             samples in a step: of this rank, and of all ranks together, at most
//   RATE                     the learning rate
//   CLUSTER                  defined if `epoch` is used; then RANKS is 1, HIDDEN is 0, and BATCH at most 32
//
// Every sum has a fixed order, so that a run gives the same bits again. A number that is NaN stays NaN through ReLU: with
// fmaxf, a run that diverged would go on.

#ifdef __CUDACC__
#define KERNEL extern "C" __global__
#else
// A compiler for CPUs, in the tests. What it lacks, its own header defines.
#define KERNEL __global__
#endif

// Of the layer before the logits: its inputs, and where its parameters begin.
#define LAST (HIDDEN ? HIDDEN : PIXELS)
#define FIRST_PARAMETERS (HIDDEN * (PIXELS + 1))
#define PARAMETERS (FIRST_PARAMETERS + CLASSES * (LAST + 1))

#define WARP 32

// The samples of all ranks in a step. Only the last step of an epoch has fewer than WHOLE.
__device__ static int whole_of(int step)
{
    int left = SAMPLES - step * WHOLE;
    return left < WHOLE ? left : WHOLE;
}

// This rank's samples in a step: every RANKS-th of all.
__device__ static int own_of(int step)
{
    int whole = whole_of(step);
    return whole > RANK ? (whole - RANK + RANKS - 1) / RANKS : 0;
}

// The index in the training set of this rank's sample `i` of a step.
__device__ static long long sample_of(const unsigned *order, int step, int i)
{
    return order[step * WHOLE + i * RANKS + RANK];
}

__device__ static float rectified(float x)
{
    return x < 0.0f ? 0.0f : x;
}

// The sum over the threads of a warp, all of which get it.
__device__ static float sum_of_warp(float x)
{
    for (int other = WARP / 2; other > 0; other /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, other);
    return x;
}

// Pixels as the network takes them. `values` has the number for each value of a byte, so that these are the CPU's bits.
KERNEL void normalize(const unsigned char *pixels, const float *values, float *images, long long count)
{
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long k = (long long)blockIdx.x * blockDim.x + threadIdx.x; k < count; k += step)
        images[k] = values[pixels[k]];
}

#if HIDDEN
// The hidden layer's outputs. A block takes a sample (x) and 32 outputs (y), a warp one output at a time.
KERNEL void hidden_layer(const float *images, const unsigned *order, const float *parameters, float *hidden, const int *at)
{
    __shared__ float image[PIXELS];
    int i = blockIdx.x, step = at[0], lane = threadIdx.x % WARP;
    if (i >= own_of(step))
        return;
    const float *row = images + sample_of(order, step, i) * PIXELS;
    for (int k = threadIdx.x; k < PIXELS; k += blockDim.x)
        image[k] = row[k];
    __syncthreads();
    int end = (blockIdx.y + 1) * 32 < HIDDEN ? (blockIdx.y + 1) * 32 : HIDDEN;
    for (int output = blockIdx.y * 32 + threadIdx.x / WARP; output < end; output += blockDim.x / WARP) {
        const float *weights = parameters + output * PIXELS;
        float sum = 0.0f;
        for (int k = lane; k < PIXELS; k += WARP)
            sum += weights[k] * image[k];
        sum = sum_of_warp(sum);
        if (lane == 0)
            hidden[i * HIDDEN + output] = rectified(sum + parameters[HIDDEN * PIXELS + output]);
    }
}
#endif

// The logits of a sample in each block, its loss, and the gradient of its logits and of its hidden outputs.
KERNEL void loss(const float *images, const int *labels, const unsigned *order, const float *parameters, const float *hidden,
                 float *rows, float *hidden_gradients, float *losses, const int *at)
{
    __shared__ float parts[8][CLASSES];
    __shared__ float logits[CLASSES];
    __shared__ float gradient[CLASSES];
    int i = blockIdx.x, step = at[0], t = threadIdx.x, warps = blockDim.x / WARP;
    if (i >= own_of(step))
        return;
    long long sample = sample_of(order, step, i);
    const float *row = HIDDEN ? hidden + (long long)i * HIDDEN : images + sample * PIXELS;
    const float *weights = parameters + FIRST_PARAMETERS;
    float sums[CLASSES];
    for (int c = 0; c < CLASSES; c++)
        sums[c] = 0.0f;
    for (int k = t; k < LAST; k += blockDim.x) {
        float x = row[k];
        for (int c = 0; c < CLASSES; c++)
            sums[c] += x * weights[c * LAST + k];
    }
    for (int c = 0; c < CLASSES; c++) {
        float sum = sum_of_warp(sums[c]);
        if (t % WARP == 0)
            parts[t / WARP][c] = sum;
    }
    __syncthreads();
    if (t < CLASSES) {
        float z = weights[CLASSES * LAST + t];
        for (int k = 0; k < warps; k++)
            z += parts[k][t];
        logits[t] = HIDDEN ? z : rectified(z);
    }
    __syncthreads();
    if (t < CLASSES) {
        int label = labels[sample];
        float largest = logits[0], total = 0.0f, scale = 1.0f / whole_of(step);
        for (int c = 1; c < CLASSES; c++)
            largest = logits[c] > largest ? logits[c] : largest;
        for (int c = 0; c < CLASSES; c++)
            total += expf(logits[c] - largest);
        float slope = expf(logits[t] - largest) * (scale / total) - (t == label ? scale : 0.0f);
        if (!HIDDEN && !(logits[t] > 0.0f))
            slope = 0.0f;
        gradient[t] = slope;
        rows[i * CLASSES + t] = slope;
        if (t == label)
            losses[i] = logf(total) - (logits[t] - largest);
    }
    __syncthreads();
    for (int k = t; k < HIDDEN; k += blockDim.x) {
        float sum = 0.0f;
        for (int c = 0; c < CLASSES; c++)
            sum += gradient[c] * weights[c * LAST + k];
        hidden_gradients[(long long)i * HIDDEN + k] = row[k] > 0.0f ? sum : 0.0f;
    }
}

// The gradient of a layer's weight in each thread: the sum over this rank's samples of `slopes` (of the layer's outputs) times
// the inputs: images if `inputs` is null. A bias counts as the weight of one more input, which is always 1. A block takes 32
// inputs (x) and 8 outputs (y).
__device__ static void layer_gradient(const float *images, const unsigned *order, const float *inputs, const float *slopes,
                                      float *gradient, int count, int outputs, int step)
{
    int input = blockIdx.x * 32 + threadIdx.x % 32, output = blockIdx.y * 8 + threadIdx.x / 32, own = own_of(step);
    if (input > count || output >= outputs)
        return;
    float sum = 0.0f;
    for (int i = 0; i < own; i++) {
        const float *row = inputs ? inputs + (long long)i * count : images + sample_of(order, step, i) * count;
        float slope = slopes[i * outputs + output];
        sum += input < count ? slope * row[input] : slope;
    }
    gradient[input < count ? output * count + input : outputs * count + output] = sum;
}

// The gradient of the layer before the logits. After the parameters' come the loss and the stop weight, so that one all-reduce
// sums all of them.
KERNEL void gradient(const float *images, const unsigned *order, const float *hidden, const float *rows, const float *losses,
                     const float *stop, float *sum, const int *at, float *log)
{
    int step = at[0], own = own_of(step), t = threadIdx.x;
    layer_gradient(images, order, HIDDEN ? hidden : 0, rows, sum + FIRST_PARAMETERS, LAST, CLASSES, step);
    if (blockIdx.x == 0 && blockIdx.y == 0 && t < WARP) {
        float loss = 0.0f;
        for (int i = t; i < own; i += WARP)
            loss += losses[i];
        loss = sum_of_warp(loss);
        if (t == 0) {
            log[3 * step] = loss / own;
            sum[PARAMETERS] = loss / whole_of(step);
            sum[PARAMETERS + 1] = stop[0];
        }
    }
}

#if HIDDEN
// The gradient of the hidden layer.
KERNEL void hidden_gradient(const float *images, const unsigned *order, const float *hidden_gradients, float *sum, const int *at)
{
    layer_gradient(images, order, 0, hidden_gradients, sum, PIXELS, HIDDEN, at[0]);
}
#endif

// Takes a step with the gradient of all ranks, notes the losses, and goes on to the next step.
KERNEL void update(float *parameters, const float *sum, int *at, float *log)
{
    int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k < PARAMETERS)
        parameters[k] -= RATE * sum[k];
    if (k == 0) {
        int step = at[0];
        log[3 * step + 1] = sum[PARAMETERS];
        log[3 * step + 2] = sum[PARAMETERS + 1];
        at[0] = step + 1;
    }
}

#ifdef CLUSTER
// The blocks of the cluster, the inputs whose weights each keeps, and the length of a row in its shared memory. The padding
// spreads rows over the banks.
#define BLOCKS 8
#define PART (PIXELS / BLOCKS)
#define ROW (PART + 4)
#define OUTPUTS (BATCH * CLASSES)

// Two numbers that one load reads.
struct __attribute__((aligned(8))) Pair {
    float x, y;
};

// A block's shared memory. Two steps take turns with `images`, `labels` and `partial`: while one is computed, the other is
// loaded, or other blocks already write to it.
struct Block {
    float images[2][BATCH][ROW];
    float weights[CLASSES][ROW];
    // Of each block, its share of the logits.
    float partial[2][BLOCKS][OUTPUTS];
    float half[OUTPUTS];
    float logits[OUTPUTS];
    // The gradient of the logits, and in the column after them the loss.
    float slopes[BATCH][CLASSES + 2];
    float biases[CLASSES];
    int labels[2][BATCH];
};

#ifdef __CUDACC__
extern __shared__ __align__(16) char block_memory[];

__device__ __forceinline__ struct Block *own_block()
{
    return (struct Block *)block_memory;
}

__device__ __forceinline__ unsigned shared_address(const void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ unsigned cluster_rank()
{
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Waits for all blocks, and makes visible what they wrote to one another's shared memory.
__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Writes `x` to the place of `p` in the shared memory of another block of the cluster.
__device__ __forceinline__ void cluster_store(float *p, unsigned block, float x)
{
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(block));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(x) : "memory");
}

// Starts to copy two numbers to shared memory.
__device__ __forceinline__ void copy_two(float *to, const float *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

// Ends a group of copies.
__device__ __forceinline__ void copies_end()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for this thread's copies, but for those of the last group if `but_last`.
__device__ __forceinline__ void copies_wait(int but_last)
{
    if (but_last)
        asm volatile("cp.async.wait_group 1;" ::: "memory");
    else
        asm volatile("cp.async.wait_group 0;" ::: "memory");
}
#else
// The header defines the rest: cluster_rank, cluster_sync, cluster_store, and the memory.
#define own_block() ((struct Block *)dynamic_shared_memory())
#define copy_two(to, from) ((to)[0] = (from)[0], (to)[1] = (from)[1])
#define copies_end()
#define copies_wait(but_last)
#endif

// Starts to load this block's inputs of a step, whose samples have `own`.
__device__ static void load_step(struct Block *block, int turn, const float *images, const int *labels,
                                 const unsigned *order, int step, int input)
{
    int own = own_of(step), t = threadIdx.x;
    for (int k = t; k < own * (PART / 2); k += blockDim.x) {
        int i = k / (PART / 2), at = k % (PART / 2) * 2;
        copy_two(&block->images[turn][i][at], images + sample_of(order, step, i) * PIXELS + input + at);
    }
    if (t < own)
        block->labels[turn][t] = labels[sample_of(order, step, t)];
    copies_end();
}

// Steps `first` to `first + steps` of an epoch in one launch, for one rank and the linear model. Each block keeps its weights in
// shared memory from the first step to the last. A step has one barrier of the cluster: each block computes its share of all
// logits and writes it to every block; then each has all logits, computes their gradient, and updates its own weights.
KERNEL void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(640, 1)
    epoch(const float *images, const int *labels, const unsigned *order, float *parameters, float *log, int first, int steps)
{
    struct Block *block = own_block();
    int t = threadIdx.x, own_rank = (int)cluster_rank(), input = own_rank * PART;
    // The threads up to OUTPUTS, and as many more, each compute half of an output's share.
    int output = t % OUTPUTS, second = t / OUTPUTS, sample = output / CLASSES, class_ = output % CLASSES;
    for (int k = t; k < CLASSES * PART; k += blockDim.x)
        block->weights[k / PART][k % PART] = parameters[k / PART * PIXELS + input + k % PART];
    if (t < CLASSES)
        block->biases[t] = parameters[CLASSES * PIXELS + t];
    // The last step may leave rows empty; their gradient is 0, and their inputs must be numbers.
    for (int k = t; k < 2 * BATCH * ROW; k += blockDim.x)
        (&block->images[0][0][0])[k] = 0.0f;
    __syncthreads();
    load_step(block, 0, images, labels, order, first, input);
    // No block may write to another that has not started.
    cluster_sync();
    for (int step = first; step < first + steps; step++) {
        int turn = (step - first) & 1, own = own_of(step), is_last = step + 1 == first + steps;
        if (!is_last)
            load_step(block, turn ^ 1, images, labels, order, step + 1, input);
        copies_wait(!is_last);
        __syncthreads();

        float sum = 0.0f;
        if (second < 2) {
            const struct Pair *row = (const struct Pair *)block->images[turn][sample];
            const struct Pair *weights = (const struct Pair *)block->weights[class_];
            int middle = (PART / 2 + 1) / 2, from = second ? middle : 0, to = second ? PART / 2 : middle;
#pragma unroll 5
            for (int k = from; k < to; k++) {
                struct Pair x = row[k], weight = weights[k];
                sum += x.x * weight.x + x.y * weight.y;
            }
        }
        if (second == 1)
            block->half[output] = sum;
        __syncthreads();
        if (second == 0) {
            sum += block->half[output];
            for (unsigned other = 0; other < BLOCKS; other++)
                cluster_store(&block->partial[turn][own_rank][output], other, sum);
        }
        cluster_sync();

        if (second == 0) {
            float z = block->biases[class_];
            for (int other = 0; other < BLOCKS; other++)
                z += block->partial[turn][other][output];
            block->logits[output] = rectified(z);
        }
        __syncthreads();
        if (second == 0) {
            const float *logits = block->logits + sample * CLASSES;
            int label = sample < own ? block->labels[turn][sample] : -1;
            float largest = logits[0], total = 0.0f, scale = sample < own ? 1.0f / own : 0.0f;
            for (int c = 1; c < CLASSES; c++)
                largest = logits[c] > largest ? logits[c] : largest;
            for (int c = 0; c < CLASSES; c++)
                total += __expf(logits[c] - largest);
            float z = logits[class_], slope = __expf(z - largest) * (scale / total) - (class_ == label ? scale : 0.0f);
            block->slopes[sample][class_] = sample < own && z > 0.0f ? slope : 0.0f;
            if (class_ == label)
                block->slopes[sample][CLASSES] = __logf(total) - (z - largest);
            else if (label < 0 && class_ == 0)
                block->slopes[sample][CLASSES] = 0.0f;
        }
        __syncthreads();

        if (t < PART * CLASSES / 2) {
            int k = t % PART, c = t / PART * 2;
            float sums[2] = {0.0f, 0.0f};
#pragma unroll 8
            for (int i = 0; i < BATCH; i++) {
                float x = block->images[turn][i][k];
                struct Pair slopes = *(const struct Pair *)&block->slopes[i][c];
                sums[0] += x * slopes.x;
                sums[1] += x * slopes.y;
            }
            block->weights[c][k] -= RATE * sums[0];
            block->weights[c + 1][k] -= RATE * sums[1];
        } else if (t >= 608 && t <= 608 + CLASSES) {
            int c = t - 608;
            float sums = 0.0f;
            for (int i = 0; i < BATCH; i++)
                sums += block->slopes[i][c];
            if (c < CLASSES)
                block->biases[c] -= RATE * sums;
            else if (own_rank == 0)
                log[3 * step] = log[3 * step + 1] = sums / own;
        }
        __syncthreads();
    }
    cluster_sync();
    for (int k = t; k < CLASSES * PART; k += blockDim.x)
        parameters[k / PART * PIXELS + input + k % PART] = block->weights[k / PART][k % PART];
    if (own_rank == 0 && t < CLASSES)
        parameters[CLASSES * PIXELS + t] = block->biases[t];
}
#endif
