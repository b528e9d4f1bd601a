// Warps and lanes as in the forward kernel. The weights are recomputed from the logarithms of their sums, 16 keys at a time.
constexpr int PITCH = WIDTH + 8, BQ = 16 * WARPS, STEPS = WIDTH / 16;
__shared__ __align__(16) Half k_tile[2][BK * PITCH], v_tile[2][BK * PITCH];
const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
const int head = blockIdx.x % HEADS, kv_head = head / (HEADS / KV_HEADS), q0 = (gridDim.y - 1 - blockIdx.y) * BQ;
const Index b = blockIdx.x / HEADS;
q += b * QUERIES * Q_WIDTH + Q_START + head * DEPTH;
dy += (b * QUERIES * HEADS + head) * DEPTH;
k += b * KEYS * K_WIDTH + K_START + kv_head * DEPTH;
v += b * KEYS * V_WIDTH + V_START + kv_head * DEPTH;
const int row = q0 + warp * 16 + g;
unsigned q_part[STEPS][4], dy_part[STEPS][4];
load_fragments<STEPS, DEPTH, Index>(q_part, q, row, t, Q_WIDTH, QUERIES);
load_fragments<STEPS, DEPTH, Index>(dy_part, dy, row, t, HEADS * DEPTH, QUERIES);
float out[STEPS * 2][4] = {}, logarithm[2], part[2];
for (int r = 0; r < 2; r++) {
    const int i = row + 8 * r;
    logarithm[r] = i < QUERIES ? lse[(Index)blockIdx.x * QUERIES + i] * LOG2E : 0.0f;
    part[r] = i < QUERIES ? delta[(Index)blockIdx.x * QUERIES + i] : 0.0f;
}
const int end = CAUSAL ? min(KEYS, q0 + BQ) : KEYS, tiles = (end + BK - 1) / BK;
copy_tile<BK, WIDTH, DEPTH, THREADS, Index>(k_tile[0], k, 0, K_WIDTH, KEYS);
copy_tile<BK, WIDTH, DEPTH, THREADS, Index>(v_tile[0], v, 0, V_WIDTH, KEYS);
copies_end();
for (int tile = 0; tile < tiles; tile++) {
    const int k0 = tile * BK, stage = tile % 2;
    if (tile + 1 < tiles) {
        copy_tile<BK, WIDTH, DEPTH, THREADS, Index>(k_tile[1 - stage], k, k0 + BK, K_WIDTH, KEYS);
        copy_tile<BK, WIDTH, DEPTH, THREADS, Index>(v_tile[1 - stage], v, k0 + BK, V_WIDTH, KEYS);
        copies_end();
        copies_wait<1>();
    } else {
        copies_wait<0>();
    }
    __syncthreads();
    #pragma unroll
    for (int j0 = 0; j0 < BK; j0 += 16) {
        if (k0 + j0 >= KEYS || (CAUSAL && k0 + j0 > q0 + warp * 16 + 15)) continue;
        float score[2][4] = {}, slope[2][4] = {};
        #pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int at = (j0 + lane / 16 * 8 + lane % 8) * PITCH + s * 16 + lane / 8 % 2 * 8;
            unsigned keys[4], values[4];
            load_matrices(keys, &k_tile[stage][at]);
            load_matrices(values, &v_tile[stage][at]);
            multiply_add<Half>(score[0], q_part[s], keys[0], keys[1]);
            multiply_add<Half>(score[1], q_part[s], keys[2], keys[3]);
            multiply_add<Half>(slope[0], dy_part[s], values[0], values[1]);
            multiply_add<Half>(slope[1], dy_part[s], values[2], values[3]);
        }
        const auto weigh = [&](const bool whole) {
            #pragma unroll
            for (int n = 0; n < 2; n++) {
                const int j = k0 + j0 + n * 8 + 2 * t;
                #pragma unroll
                for (int r = 0; r < 2; r++) drop(slope[n][2 * r], slope[n][2 * r + 1], (unsigned long long)blockIdx.x * QUERIES + row + 8 * r, j);
                #pragma unroll
                for (int e = 0; e < 4; e++) {
                    const float weight = exp2_fast(score[n][e] * SCALE2 - logarithm[e / 2]);
                    score[n][e] = weight * (slope[n][e] - part[e / 2]) * SCALE;
                    if (!whole) {
                        const int key = j + e % 2;
                        const bool seen = key < KEYS && (!MASKED || load(mask[b * KEYS + key]) != 0.0f) && (!CAUSAL || key <= row + e / 2 * 8);
                        if (!seen) score[n][e] = 0.0f;
                    }
                }
            }
        };
        if (!MASKED && k0 + j0 + 16 <= KEYS && (!CAUSAL || k0 + j0 + 15 <= q0 + warp * 16)) weigh(true);
        else weigh(false);
        const unsigned changes[4] = {pack<Half>(score[0][0], score[0][1]), pack<Half>(score[0][2], score[0][3]),
                                     pack<Half>(score[1][0], score[1][1]), pack<Half>(score[1][2], score[1][3])};
        #pragma unroll
        for (int n = 0; n < STEPS * 2; n += 2) {
            unsigned keys[4];
            load_matrices_transposed(keys, &k_tile[stage][(j0 + lane % 16) * PITCH + n * 8 + lane / 16 * 8]);
            multiply_add<Half>(out[n], changes, keys[0], keys[1]);
            multiply_add<Half>(out[n + 1], changes, keys[2], keys[3]);
        }
    }
    __syncthreads();
}
#pragma unroll
for (int r = 0; r < 2; r++) {
    const Index i = row + 8 * r;
    if (i >= QUERIES) continue;
    #pragma unroll
    for (int n = 0; n < STEPS * 2; n++) if (n * 8 + 2 * t < DEPTH) {
        *(unsigned*)(dq + (b * QUERIES + i) * Q_WIDTH + Q_START + head * DEPTH + n * 8 + 2 * t) = pack<Half>(out[n][2 * r], out[n][2 * r + 1]);
    }
}
