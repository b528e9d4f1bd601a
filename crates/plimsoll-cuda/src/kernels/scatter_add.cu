__shared__ float sums[LANES][OWNED][COLUMNS];
__shared__ int places[256], owners[256], counts[8];
const int column = threadIdx.x % COLUMNS, lane = threadIdx.x / COLUMNS, warp = threadIdx.x / 32;
const Index c = (Index)blockIdx.y * COLUMNS + column;
const int first = blockIdx.x * OWNED;
for (int r = 0; r < OWNED; r++) sums[lane][r][column] = 0.0f;
for (int start = 0; start < COUNT; start += 256) {
    // The numbers of this stretch that are the block's own rows, in their order.
    const int i = start + threadIdx.x;
    const int number = i < COUNT ? (int)numbers[i] : -1;
    const bool own = number >= first && number < first + OWNED && number < ROWS;
    const unsigned ballot = __ballot_sync(0xffffffffu, own);
    if (threadIdx.x % 32 == 0) counts[warp] = __popc(ballot);
    __syncthreads();
    int before = __popc(ballot & ((1u << threadIdx.x % 32) - 1)), found = 0;
    for (int w = 0; w < 8; w++) {
        if (w < warp) before += counts[w];
        found += counts[w];
    }
    if (own) { places[before] = i; owners[before] = number - first; }
    __syncthreads();
    if (c < WIDTH) {
        #pragma unroll 4
        for (int f = lane; f < found; f += LANES) sums[lane][owners[f]][column] += load(given[(Index)places[f] * WIDTH + c]);
    }
}
__syncthreads();
if (lane == 0 && c < WIDTH) {
    for (int r = 0; r < OWNED && first + r < ROWS; r++) {
        float sum = 0.0f;
        for (int l = 0; l < LANES; l++) sum += sums[l][r][column];
        out[(Index)(first + r) * WIDTH + c] = sum;
    }
}
