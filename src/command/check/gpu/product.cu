/* Multiplies square matrices of the side n: c = a b, once for each blockIdx.z. A block of 16 x 16 threads computes a tile. */
extern "C" __global__ void product(const float *a, const float *b, float *c, int n) {
    __shared__ float left[256];
    __shared__ float right[256];
    int row = threadIdx.y, column = threadIdx.x, at, k;
    int down = blockIdx.y * 16 + row, across = blockIdx.x * 16 + column;
    float sum = 0;
    for (at = 0; at < n; at += 16) {
        left[row * 16 + column] = a[down * n + at + column];
        right[row * 16 + column] = b[(at + row) * n + across];
        __syncthreads();
        for (k = 0; k < 16; k++) sum += left[row * 16 + k] * right[k * 16 + column];
        __syncthreads();
    }
    c[((long)blockIdx.z * n + down) * n + across] = sum;
}
