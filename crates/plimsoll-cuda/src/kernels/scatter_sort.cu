// Four lanes count for each index. Indices out of range come last.
__shared__ __align__(16) int tile[1024];
const int i = blockIdx.x * 64 + threadIdx.x / 4, lane = threadIdx.x % 4;
const auto key = [&](int at) { const long long number = at < COUNT ? (long long)numbers[at] : -1; return number >= 0 && number < ROWS ? (int)number : ROWS; };
const int own = key(i);
int before = 0;
for (int start = 0; start < COUNT; start += 1024) {
    __syncthreads();
    for (int e = threadIdx.x; e < 1024; e += 256) tile[e] = start + e < COUNT ? key(start + e) : 2147483647;
    __syncthreads();
    #pragma unroll 8
    for (int e = lane * 4; e < 1024; e += 16) {
        const int4 others = *(const int4*)&tile[e];
        before += others.x < own || (others.x == own && start + e < i);
        before += others.y < own || (others.y == own && start + e + 1 < i);
        before += others.z < own || (others.z == own && start + e + 2 < i);
        before += others.w < own || (others.w == own && start + e + 3 < i);
    }
}
before += __shfl_xor_sync(0xffffffffu, before, 1);
before += __shfl_xor_sync(0xffffffffu, before, 2);
if (i < COUNT && lane == 0) order[before] = i;
