// A block has 32 units of some rows. It first brings what changes behind the product back through the kernel, for the step after this one; then, a lane
// for each unit and a warp for each row, goes through the gates of this step.
constexpr int WIDE = GATES * UNITS, DEEP = 512;
__shared__ float after[ROWS][DEEP], brought[ROWS][32];
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
const int u0 = blockIdx.x * 32, b0 = blockIdx.y * ROWS;
if (!LAST) {
    float sums[4][ROWS] = {};
    for (int j0 = 0; j0 < WIDE; j0 += DEEP) {
        __syncthreads();
        for (int e = threadIdx.x; e < DEEP * ROWS; e += 256) {
            const int r = e / DEEP, j = e % DEEP;
            after[r][j] = b0 + r < BATCH && j0 + j < WIDE ? change_after[(Index)(b0 + r) * WIDE + j0 + j] : 0.0f;
        }
        __syncthreads();
        #pragma unroll 4
        for (int j = lane; j < min(DEEP, WIDE - j0); j += 32) {
            for (int u = 0; u < 4; u++) {
                const int unit = u0 + 4 * warp + u;
                const float weight = unit < UNITS ? load(kernel[(Index)unit * WIDE + j0 + j]) : 0.0f;
                for (int r = 0; r < ROWS; r++) sums[u][r] += after[r][j] * weight;
            }
        }
    }
    for (int u = 0; u < 4; u++) for (int r = 0; r < ROWS; r++) {
        float sum = sums[u][r];
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        if (lane == 0) brought[r][4 * warp + u] = sum;
    }
    __syncthreads();
}
const int unit = u0 + lane, b = b0 + warp;
if (warp >= ROWS || b >= BATCH || unit >= UNITS) return;
const Index at = (Index)b * UNITS + unit;
float dh = LAST ? 0.0f : carry[at] + brought[warp][lane];
if (BEFORE) {
    d_start[at] = dh;
    if (CELL == LSTM) d_cell[at] = d_state[at];
    return;
}
const Index wide = (Index)b * STEPS * WIDE + unit, narrow = (Index)b * STEPS * UNITS + unit;
const bool kept = !MASKED || load(mask[(Index)b * STEPS]) != 0.0f;
dh += load(d_hidden[narrow]);
float change[GATES] = {}, own[GATES] = {}, passed = dh;
if (kept && CELL == LSTM) {
    const float i = load(gates[wide]), f = load(gates[wide + UNITS]), g = load(gates[wide + 2 * UNITS]), o = load(gates[wide + 3 * UNITS]);
    const float c_before = FIRST ? (STARTED ? load(started[at]) : 0.0f) : cells_before[narrow];
    const float y = tanhf(cells[narrow]);
    const float total = d_state[at] + dh * o * (1.0f - y * y);
    d_state[at] = total * f;
    own[0] = total * g * i * (1.0f - i);
    own[1 % GATES] = total * c_before * f * (1.0f - f);
    own[2 % GATES] = total * i * (1.0f - g * g);
    own[3 % GATES] = dh * y * o * (1.0f - o);
    for (int g = 0; g < GATES; g++) change[g] = own[g];
    passed = 0.0f;
} else if (kept && CELL == GRU) {
    const float z = load(gates[wide]), r = load(gates[wide + UNITS]), g = load(gates[wide + 2 * UNITS]);
    const float h_before = FIRST ? (STARTED ? load(started[at]) : 0.0f) : load(hidden_before[narrow]);
    const float candidate = dh * (1.0f - z) * (1.0f - g * g);
    own[0] = dh * (h_before - g) * z * (1.0f - z);
    own[1 % GATES] = candidate * inner[narrow] * r * (1.0f - r);
    own[2 % GATES] = candidate;
    change[0] = own[0]; change[1 % GATES] = own[1 % GATES]; change[2 % GATES] = candidate * r;
    passed = dh * z;
} else if (kept) {
    const float y = load(hidden[narrow]);
    change[0] = own[0] = dh * (CELL == TANH ? 1.0f - y * y : y > 0.0f ? 1.0f : 0.0f);
    passed = 0.0f;
}
carry[at] = passed;
for (int g = 0; g < GATES; g++) {
    change_now[(Index)b * WIDE + g * UNITS + unit] = change[g];
    store(d_x + wide + g * UNITS, own[g]);
    if (CELL == GRU) store(d_recurrent + wide + g * UNITS, change[g]);
}
