// Each warp has 16 keys, and goes through the queries of every head that looks at them, 16 at a time: all products are transposed, with keys as rows.
constexpr int PITCH = WIDTH + 8, BK = 16 * WARPS, STEPS = WIDTH / 16;
__shared__ __align__(16) Half q_tile[2][BQ * PITCH], dy_tile[2][BQ * PITCH];
__shared__ float logarithms[2][BQ], parts[2][BQ];
const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
const int kv_head = blockIdx.x % KV_HEADS, k0 = blockIdx.y * BK;
const Index b = blockIdx.x / KV_HEADS;
k += b * KEYS * K_WIDTH + K_START + kv_head * DEPTH;
v += b * KEYS * V_WIDTH + V_START + kv_head * DEPTH;
const int key = k0 + warp * 16 + g;
unsigned k_part[STEPS][4], v_part[STEPS][4];
load_fragments<STEPS, DEPTH, Index>(k_part, k, key, t, K_WIDTH, KEYS);
load_fragments<STEPS, DEPTH, Index>(v_part, v, key, t, V_WIDTH, KEYS);
bool seen[2];
for (int r = 0; r < 2; r++) seen[r] = key + 8 * r < KEYS && (!MASKED || load(mask[b * KEYS + key + 8 * r]) != 0.0f);
float to_keys[STEPS * 2][4] = {}, to_values[STEPS * 2][4] = {};
// Before its own place no query sees a key.
const int first = CAUSAL ? k0 / BQ : 0, per_head = (QUERIES + BQ - 1) / BQ - first, tiles = max(per_head, 0) * (HEADS / KV_HEADS);
const auto fetch_queries = [&](int tile, int stage) {
    const int head = kv_head * (HEADS / KV_HEADS) + tile / per_head, q0 = (first + tile % per_head) * BQ;
    copy_tile<BQ, WIDTH, DEPTH, THREADS, Index>(q_tile[stage], q + b * QUERIES * Q_WIDTH + Q_START + head * DEPTH, q0, Q_WIDTH, QUERIES);
    copy_tile<BQ, WIDTH, DEPTH, THREADS, Index>(dy_tile[stage], dy + (b * QUERIES * HEADS + head) * DEPTH, q0, HEADS * DEPTH, QUERIES);
    copies_end();
    const Index at = (b * HEADS + head) * QUERIES;
    for (int i = threadIdx.x; i < BQ; i += THREADS) {
        logarithms[stage][i] = q0 + i < QUERIES ? lse[at + q0 + i] * LOG2E : 0.0f;
        parts[stage][i] = q0 + i < QUERIES ? delta[at + q0 + i] : 0.0f;
    }
};
if (tiles > 0) fetch_queries(0, 0);
for (int tile = 0; tile < tiles; tile++) {
    const int head = kv_head * (HEADS / KV_HEADS) + tile / per_head, q0 = (first + tile % per_head) * BQ, stage = tile % 2;
    if (tile + 1 < tiles) {
        fetch_queries(tile + 1, 1 - stage);
        copies_wait<1>();
    } else {
        copies_wait<0>();
    }
    __syncthreads();
    #pragma unroll
    for (int i0 = 0; i0 < BQ; i0 += 16) {
        if (q0 + i0 >= QUERIES || (CAUSAL && q0 + i0 + 15 < k0 + warp * 16)) continue;
        float score[2][4] = {}, slope[2][4] = {};
        #pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int at = (i0 + lane / 16 * 8 + lane % 8) * PITCH + s * 16 + lane / 8 % 2 * 8;
            unsigned queries[4], gradients[4];
            load_matrices(queries, &q_tile[stage][at]);
            load_matrices(gradients, &dy_tile[stage][at]);
            multiply_add<Half>(score[0], k_part[s], queries[0], queries[1]);
            multiply_add<Half>(score[1], k_part[s], queries[2], queries[3]);
            multiply_add<Half>(slope[0], v_part[s], gradients[0], gradients[1]);
            multiply_add<Half>(slope[1], v_part[s], gradients[2], gradients[3]);
        }
        const auto weigh = [&](const bool whole) {
            #pragma unroll
            for (int n = 0; n < 2; n++) {
                #pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int at = i0 + n * 8 + 2 * t + e % 2, i = q0 + at;
                    const bool visible = whole || (seen[e / 2] && i < QUERIES && (!CAUSAL || key + e / 2 * 8 <= i));
                    const float weight = visible ? exp2_fast(score[n][e] * SCALE2 - logarithms[stage][at]) : 0.0f;
                    const float factor = kept((unsigned long long)(b * HEADS + head) * QUERIES + i, key + e / 2 * 8);
                    score[n][e] = weight * factor;
                    slope[n][e] = visible ? weight * (slope[n][e] * factor - parts[stage][at]) * SCALE : 0.0f;
                }
            }
        };
        if (!MASKED && k0 + BK <= KEYS && q0 + i0 + 16 <= QUERIES && (!CAUSAL || k0 + warp * 16 + 15 <= q0 + i0)) weigh(true);
        else weigh(false);
        const unsigned weights[4] = {pack<Half>(score[0][0], score[0][1]), pack<Half>(score[0][2], score[0][3]),
                                     pack<Half>(score[1][0], score[1][1]), pack<Half>(score[1][2], score[1][3])};
        const unsigned changes[4] = {pack<Half>(slope[0][0], slope[0][1]), pack<Half>(slope[0][2], slope[0][3]),
                                     pack<Half>(slope[1][0], slope[1][1]), pack<Half>(slope[1][2], slope[1][3])};
        #pragma unroll
        for (int n = 0; n < STEPS * 2; n += 2) {
            const int at = (i0 + lane % 16) * PITCH + n * 8 + lane / 16 * 8;
            unsigned queries[4], gradients[4];
            load_matrices_transposed(gradients, &dy_tile[stage][at]);
            multiply_add<Half>(to_values[n], weights, gradients[0], gradients[1]);
            multiply_add<Half>(to_values[n + 1], weights, gradients[2], gradients[3]);
            load_matrices_transposed(queries, &q_tile[stage][at]);
            multiply_add<Half>(to_keys[n], changes, queries[0], queries[1]);
            multiply_add<Half>(to_keys[n + 1], changes, queries[2], queries[3]);
        }
    }
    __syncthreads();
}
#pragma unroll
for (int r = 0; r < 2; r++) {
    const Index j = key + 8 * r;
    if (j >= KEYS) continue;
    #pragma unroll
    for (int n = 0; n < STEPS * 2; n++) if (n * 8 + 2 * t < DEPTH) {
        const int c = kv_head * DEPTH + n * 8 + 2 * t;
        *(unsigned*)(dk + (b * KEYS + j) * K_WIDTH + K_START + c) = pack<Half>(to_keys[n][2 * r], to_keys[n][2 * r + 1]);
        *(unsigned*)(dv + (b * KEYS + j) * V_WIDTH + V_START + c) = pack<Half>(to_values[n][2 * r], to_values[n][2 * r + 1]);
    }
}
