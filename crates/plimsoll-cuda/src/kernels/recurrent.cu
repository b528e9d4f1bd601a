// A block has 32 units, one per lane, of some rows; its warps share the sums over the hidden state among them.
constexpr int WIDE = GATES * UNITS, DEEP = 256;
__shared__ float before[DEEP][ROWS], parts[8][GATES * ROWS][32];
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
const int unit = blockIdx.x * 32 + lane, b0 = blockIdx.y * ROWS;
float sums[GATES][ROWS] = {};
for (int j0 = 0; j0 < UNITS; j0 += DEEP) {
    __syncthreads();
    for (int e = threadIdx.x; e < DEEP * ROWS; e += 256) {
        const int r = e / DEEP, j = e % DEEP;
        before[j][r] = b0 + r < BATCH && j0 + j < UNITS ? h_before[(Index)(b0 + r) * UNITS + j0 + j] : 0.0f;
    }
    __syncthreads();
    if (unit < UNITS) {
        #pragma unroll 8
        for (int j = warp; j < min(DEEP, UNITS - j0); j += 8) {
            for (int g = 0; g < GATES; g++) {
                const float weight = load(kernel[(Index)(j0 + j) * WIDE + g * UNITS + unit]);
                for (int r = 0; r < ROWS; r++) sums[g][r] += before[j][r] * weight;
            }
        }
    }
}
for (int g = 0; g < GATES; g++) for (int r = 0; r < ROWS; r++) parts[warp][g * ROWS + r][lane] = sums[g][r];
__syncthreads();
const int b = b0 + warp;
if (warp >= ROWS || b >= BATCH || unit >= UNITS) return;
float product[GATES], own[GATES];
for (int g = 0; g < GATES; g++) {
    product[g] = BIASED ? load(bias[g * UNITS + unit]) : 0.0f;
    for (int w = 0; w < 8; w++) product[g] += parts[w][g * ROWS + warp][lane];
    own[g] = load(x[(Index)b * STEPS * WIDE + g * UNITS + unit]);
}
const Index at = (Index)b * UNITS + unit;
const bool kept = !MASKED || load(mask[(Index)b * STEPS]) != 0.0f;
float h = h_before[at];
if (CELL == LSTM) {
    const float i = sigmoid(own[0] + product[0]), f = sigmoid(own[1 % GATES] + product[1 % GATES]);
    const float g = tanhf(own[2 % GATES] + product[2 % GATES]), o = sigmoid(own[3 % GATES] + product[3 % GATES]);
    if (kept) {
        const float c = f * state[at] + i * g;
        state[at] = c;
        h = o * tanhf(c);
    }
    own[0] = i; own[1 % GATES] = f; own[2 % GATES] = g; own[3 % GATES] = o;
} else if (CELL == GRU) {
    const float z = sigmoid(own[0] + product[0]), r = sigmoid(own[1 % GATES] + product[1 % GATES]);
    const float g = tanhf(own[2 % GATES] + r * product[2 % GATES]);
    if (kept) h = z * h + (1.0f - z) * g;
    own[0] = z; own[1 % GATES] = r; own[2 % GATES] = g;
} else if (kept) {
    const float y = own[0] + product[0];
    h = CELL == TANH ? tanhf(y) : y < 0.0f ? 0.0f : y;
}
h_after[at] = h;
if (GATES > 1) for (int g = 0; g < GATES; g++) store(gates + (Index)b * STEPS * WIDE + g * UNITS + unit, own[g]);
store(hidden + (Index)b * STEPS * UNITS + unit, h);
