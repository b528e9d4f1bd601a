// A warp for each query of each head.
const Index at = (Index)blockIdx.x * 8 + threadIdx.x / 32;
if (at >= (Index)BATCH * HEADS * QUERIES) return;
const int i = at % QUERIES, head = at / QUERIES % HEADS;
const Index row = ((at / QUERIES / HEADS * QUERIES + i) * HEADS + head) * DEPTH;
float sum = 0.0f;
for (int c = threadIdx.x % 32; c < DEPTH; c += 32) sum += load(o[row + c]) * load(dy[row + c]);
for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
if (threadIdx.x % 32 == 0) delta[at] = sum;
