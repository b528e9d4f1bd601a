#ifndef TENSOR_CORES
#define TENSOR_CORES
// Tensor cores: 16 × 16 by 16 × 8 with sums in single precision. Lane (g, t) = (lane / 4, lane % 4) has pairs of adjacent columns 2t.
template <typename T> __device__ __forceinline__ void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);
template <> __device__ __forceinline__ void multiply_add<brain>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> __device__ __forceinline__ void multiply_add<half>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <typename T> __device__ __forceinline__ unsigned pack(float low, float high);
template <> __device__ __forceinline__ unsigned pack<brain>(float low, float high) {
    unsigned y; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low)); return y;
}
template <> __device__ __forceinline__ unsigned pack<half>(float low, float high) {
    unsigned y; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low)); return y;
}
__device__ __forceinline__ float exp2_fast(float x) { float y; asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

// Four matrices of 8 × 8; each lane gives the address of one row.
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const void* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"((unsigned)__cvta_generic_to_shared(from)) : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(unsigned (&to)[4], const void* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"((unsigned)__cvta_generic_to_shared(from)) : "memory");
}

// Copies to shared memory that run on while others compute, in groups.
__device__ __forceinline__ void copy_16(void* to, const void* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
        :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory"); }

// `ROWS` rows of `DEPTH` numbers, with zeros up to `WIDTH` and behind the last row.
template <int ROWS, int WIDTH, int DEPTH, int THREADS, typename Index, typename T>
__device__ __forceinline__ void copy_tile(T* to, const T* from, int first, int pitch, int extent) {
    #pragma unroll
    for (int e = threadIdx.x; e < ROWS * (WIDTH / 8); e += THREADS) {
        const int row = e / (WIDTH / 8), c = e % (WIDTH / 8) * 8;
        const bool inside = first + row < extent && c < DEPTH;
        copy_16(to + row * (WIDTH + 8) + c, inside ? from + (Index)(first + row) * pitch + c : from, inside);
    }
}

// The left fragments of the rows `row` and `row + 8`.
template <int STEPS, int DEPTH, typename Index, typename T>
__device__ __forceinline__ void load_fragments(unsigned (&to)[STEPS][4], const T* from, int row, int t, int pitch, int extent) {
    #pragma unroll
    for (int s = 0; s < STEPS; s++) for (int e = 0; e < 4; e++) {
        const int i = row + e % 2 * 8, c = s * 16 + 2 * t + e / 2 * 8;
        to[s][e] = i < extent && c < DEPTH ? *(const unsigned*)(from + (Index)i * pitch + c) : 0u;
    }
}
#endif
