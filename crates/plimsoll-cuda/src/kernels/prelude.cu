struct half { unsigned short bits; };
struct brain { unsigned short bits; };
struct Header { unsigned long long seed, first_row; unsigned step, unused[3]; };

__device__ __forceinline__ float number(unsigned bits) { return __uint_as_float(bits); }
__device__ __forceinline__ bool is_nan(float x) { return x != x; }
__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) <= 3.402823466e38f; }

// Whatever lies in memory is single precision as soon as it is read. Integers are cut towards zero and held at the ends of their range.
__device__ __forceinline__ float load(float x) { return x; }
__device__ __forceinline__ float load(double x) { return (float)x; }
__device__ __forceinline__ float load(int x) { return (float)x; }
__device__ __forceinline__ float load(long long x) { return (float)x; }
__device__ __forceinline__ float load(unsigned char x) { return (float)x; }
__device__ __forceinline__ float load(bool x) { return x ? 1.0f : 0.0f; }
__device__ __forceinline__ float load(brain x) { return number((unsigned)x.bits << 16); }
__device__ __forceinline__ float load(half x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
__device__ __forceinline__ void store(float* to, float x) { *to = x; }
__device__ __forceinline__ void store(double* to, float x) { *to = x; }
__device__ __forceinline__ void store(int* to, float x) { *to = is_nan(x) ? 0 : __float2int_rz(x); }
__device__ __forceinline__ void store(long long* to, float x) { *to = is_nan(x) ? 0 : __float2ll_rz(x); }
__device__ __forceinline__ void store(unsigned char* to, float x) { *to = x >= 255.0f ? 255 : x > 0.0f ? (unsigned char)x : 0; }
__device__ __forceinline__ void store(bool* to, float x) { *to = x != 0.0f; }
__device__ __forceinline__ void store(half* to, float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to->bits) : "f"(x)); }
__device__ __forceinline__ void store(brain* to, float x) {
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to->bits) : "f"(x));
#else
    unsigned bits = __float_as_uint(x);
    to->bits = is_nan(x) ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
#endif
}

// Vectors of adjacent numbers, aligned to their size or 16 bytes, in accesses that are as wide.
template <int BYTES> struct Word;
template <> struct Word<1> { using Type = unsigned char; };
template <> struct Word<2> { using Type = unsigned short; };
template <> struct Word<4> { using Type = unsigned; };
template <> struct Word<8> { using Type = uint2; };
template <> struct Word<16> { using Type = uint4; };
template <int V, typename T> struct Pack {
    static constexpr int BYTES = V * sizeof(T) < 16 ? V * sizeof(T) : 16, WORDS = V * sizeof(T) / BYTES;
    using Type = typename Word<BYTES>::Type;
    union { Type words[WORDS]; T items[V]; };
};
template <int V, typename T> __device__ __forceinline__ void load_vector(float (&to)[V], const T* from) {
    Pack<V, T> pack;
    #pragma unroll
    for (int w = 0; w < Pack<V, T>::WORDS; w++) pack.words[w] = reinterpret_cast<const typename Pack<V, T>::Type*>(from)[w];
    #pragma unroll
    for (int u = 0; u < V; u++) to[u] = load(pack.items[u]);
}
template <int V, typename T> __device__ __forceinline__ void store_vector(T* to, const float (&from)[V]) {
    Pack<V, T> pack;
    #pragma unroll
    for (int u = 0; u < V; u++) store(pack.items + u, from[u]);
    #pragma unroll
    for (int w = 0; w < Pack<V, T>::WORDS; w++) reinterpret_cast<typename Pack<V, T>::Type*>(to)[w] = pack.words[w];
}

// NaN is handed on rather than dropped.
__device__ __forceinline__ float larger(float a, float b) { return is_nan(a) || is_nan(b) ? number(0x7fc00000) : fmaxf(a, b); }
__device__ __forceinline__ float smaller(float a, float b) { return is_nan(a) || is_nan(b) ? number(0x7fc00000) : fminf(a, b); }
__device__ __forceinline__ float sign(float x) { return x == 0.0f || is_nan(x) ? x : copysignf(1.0f, x); }
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// Philox4x32-10: the same bits as on every other device.
__device__ __forceinline__ uint4 random_block(const Header* header, unsigned stream, unsigned long long block) {
    unsigned c0 = (unsigned)block, c1 = (unsigned)(block >> 32), c2 = header->step, c3 = stream;
    unsigned k0 = (unsigned)header->seed, k1 = (unsigned)(header->seed >> 32);
    #pragma unroll
    for (int round = 0; round < 10; round++) {
        unsigned long long a = (unsigned long long)c0 * 0xD2511F53u, b = (unsigned long long)c2 * 0xCD9E8D57u;
        unsigned n0 = (unsigned)(b >> 32) ^ c1 ^ k0, n2 = (unsigned)(a >> 32) ^ c3 ^ k1;
        c0 = n0; c1 = (unsigned)b; c2 = n2; c3 = (unsigned)a;
        k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}
__device__ __forceinline__ float unit(unsigned word) { return (float)(word >> 8) * (1.0f / 16777216.0f); }
__device__ float uniform(const Header* header, unsigned stream, unsigned long long index) {
    const uint4 words = random_block(header, stream, index / 4);
    const unsigned lane = (unsigned)(index % 4);
    return unit(lane == 0 ? words.x : lane == 1 ? words.y : lane == 2 ? words.z : words.w);
}
// Of two adjacent indices.
__device__ __forceinline__ void uniform_pair(float (&to)[2], const Header* header, unsigned stream, unsigned long long index) {
    const uint4 words = random_block(header, stream, index / 4);
    const unsigned lane = (unsigned)(index % 4);
    to[0] = unit(lane == 0 ? words.x : lane == 1 ? words.y : lane == 2 ? words.z : words.w);
    to[1] = lane == 3 ? unit(random_block(header, stream, index / 4 + 1).x) : unit(lane == 0 ? words.y : lane == 1 ? words.z : words.w);
}
// From an index that is a multiple of four on.
template <int V> __device__ __forceinline__ void uniform_vector(float (&to)[V], const Header* header, unsigned stream, unsigned long long index) {
    #pragma unroll
    for (int u = 0; u < V; u += 4) {
        const uint4 words = random_block(header, stream, index / 4 + u / 4);
        to[u] = unit(words.x); to[u + 1] = unit(words.y); to[u + 2] = unit(words.z); to[u + 3] = unit(words.w);
    }
}

// Adds `sum2` exponentials relative to `value2` to `sum` relative to `value`, which stays the larger of the two. NaN stays NaN.
__device__ __forceinline__ void log_sum(float& value, float& sum, float value2, float sum2) {
    float top = larger(value, value2);
    if (is_finite(top)) {
        float own = is_finite(value) ? sum * expf(value - top) : 0.0f;
        float other = is_finite(value2) ? sum2 * expf(value2 - top) : 0.0f;
        sum = own + other;
    }
    value = top;
}

template <int V> __device__ __forceinline__ void log_sum_vector(float& value, float& sum, const float (&x)[V]) {
    float top = value;
    #pragma unroll
    for (int u = 0; u < V; u++) top = larger(top, x[u]);
    if (is_finite(top)) {
        sum = is_finite(value) ? sum * expf(value - top) : 0.0f;
        #pragma unroll
        for (int u = 0; u < V; u++) sum += expf(x[u] - top);
    }
    value = top;
}

// The place of the first of equals wins, and NaN over all.
__device__ __forceinline__ void first_largest(float& value, int& position, float value2, int position2) {
    bool equal = value == value2 || (is_nan(value) && is_nan(value2));
    bool above = !is_nan(value) && (is_nan(value2) || value2 > value);
    if (above || (equal && position2 < position)) { value = value2; position = position2; }
}

// Products of small tiles in shared memory, whose rows are `PITCH` apart and begin at multiples of four numbers. A thread has the rows `row`, `row + 16`, …
__device__ __forceinline__ float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

// Brings `CHUNK` columns of some rows into shared memory, as single precision; zeros where there are no rows or columns left.
template <int CHUNK, int DEPTH, typename Index, typename T>
__device__ __forceinline__ void fetch(float* to, const T* from, int first, int rows, int chunk, int width, int extent) {
    for (int e = threadIdx.x; e < rows * CHUNK; e += blockDim.x) {
        const int row = e / CHUNK, c = e % CHUNK, at = chunk * CHUNK + c;
        to[row * (CHUNK + 4) + c] = first + row < extent && at < DEPTH ? load(from[(Index)(first + row) * width + at]) : 0.0f;
    }
}

// To each pair of its rows on the left and on the right, the sum of their products.
template <int R, int S, int DEPTH, int PITCH>
__device__ __forceinline__ void add_dots(float (&sums)[R][S], const float* left, const float* right, int row, int column) {
    #pragma unroll 4
    for (int c = 0; c < DEPTH; c += 4) {
        float4 x[R], y[S];
        for (int r = 0; r < R; r++) x[r] = *(const float4*)&left[(row + 16 * r) * PITCH + c];
        for (int s = 0; s < S; s++) y[s] = *(const float4*)&right[(column + 16 * s) * PITCH + c];
        for (int r = 0; r < R; r++) for (int s = 0; s < S; s++) sums[r][s] += dot(x[r], y[s]);
    }
}

// To four columns of each of its rows, the rows on the right weighted by those on the left.
template <int R, int DEPTH, int LEFT, int PITCH>
__device__ __forceinline__ void add_products(float (&sums)[R][4], const float* left, const float* right, int row, int column) {
    #pragma unroll 4
    for (int k = 0; k < DEPTH; k += 4) {
        float4 x[R];
        for (int r = 0; r < R; r++) x[r] = *(const float4*)&left[(row + 16 * r) * LEFT + k];
        for (int u = 0; u < 4; u++) {
            const float4 y = *(const float4*)&right[(k + u) * PITCH + column];
            for (int r = 0; r < R; r++) {
                const float weight = u == 0 ? x[r].x : u == 1 ? x[r].y : u == 2 ? x[r].z : x[r].w;
                sums[r][0] += weight * y.x;
                sums[r][1] += weight * y.y;
                sums[r][2] += weight * y.z;
                sums[r][3] += weight * y.w;
            }
        }
    }
}
