// Some lanes for each query of each head.
const Index at = (Index)blockIdx.x * (256 / LANES) + threadIdx.x / LANES;
const bool is_row = at < (Index)BATCH * HEADS * QUERIES;
const int i = at % QUERIES, head = at / QUERIES % HEADS;
const Index row = ((at / QUERIES / HEADS * QUERIES + i) * HEADS + head) * DEPTH;
float sum = 0.0f;
if (is_row) for (int c = threadIdx.x % LANES * EACH; c < DEPTH; c += LANES * EACH) {
    float x[EACH], y[EACH];
    load_vector(x, o + row + c);
    load_vector(y, dy + row + c);
    for (int u = 0; u < EACH; u++) sum += x[u] * y[u];
}
for (int offset = LANES / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
if (is_row && threadIdx.x % LANES == 0) delta[at] = sum;
