// Thread (ty, tx) has the keys ty, ty + 16, … of its block's tile and the queries tx, tx + 16, … of each tile of queries, of every head that looks
// at these keys.
constexpr int PITCH = CHUNK + 4, BQ = 16 * RQ, BK = 16 * RK;
__shared__ __align__(16) float q_tile[BQ * PITCH], dy_tile[BQ * PITCH], k_tile[BK * PITCH], v_tile[BK * PITCH];
__shared__ __align__(16) float weights[BK * (BQ + 4)], changes[BK * (BQ + 4)];
const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
const int kv_head = blockIdx.x % KV_HEADS, k0 = blockIdx.y * BK;
const Index b = blockIdx.x / KV_HEADS;
k += b * KEYS * K_WIDTH + K_START + kv_head * DEPTH;
v += b * KEYS * V_WIDTH + V_START + kv_head * DEPTH;
bool seen[RK];
for (int s = 0; s < RK; s++) {
    const int j = k0 + ty + 16 * s;
    seen[s] = j < KEYS && (!MASKED || load(mask[b * KEYS + j]) != 0.0f);
}
float to_keys[CHUNKS][RK][4] = {}, to_values[CHUNKS][RK][4] = {};
if (CHUNKS == 1) {
    fetch<CHUNK, DEPTH, Index>(k_tile, k, k0, BK, 0, K_WIDTH, KEYS);
    fetch<CHUNK, DEPTH, Index>(v_tile, v, k0, BK, 0, V_WIDTH, KEYS);
}
for (int head = kv_head * (HEADS / KV_HEADS); head < (kv_head + 1) * (HEADS / KV_HEADS); head++) {
    const auto* own_q = q + b * QUERIES * Q_WIDTH + Q_START + head * DEPTH;
    const auto* own_dy = dy + (b * QUERIES * HEADS + head) * DEPTH;
    const Index row = (b * HEADS + head) * QUERIES;
    // Before its own place no query sees a key.
    for (int q0 = CAUSAL ? k0 / BQ * BQ : 0; q0 < QUERIES; q0 += BQ) {
        float score[RK][RQ] = {}, slope[RK][RQ] = {};
        #pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            __syncthreads();
            if (CHUNKS > 1) {
                fetch<CHUNK, DEPTH, Index>(k_tile, k, k0, BK, chunk, K_WIDTH, KEYS);
                fetch<CHUNK, DEPTH, Index>(v_tile, v, k0, BK, chunk, V_WIDTH, KEYS);
            }
            fetch<CHUNK, DEPTH, Index>(q_tile, own_q, q0, BQ, chunk, Q_WIDTH, QUERIES);
            fetch<CHUNK, DEPTH, Index>(dy_tile, own_dy, q0, BQ, chunk, HEADS * DEPTH, QUERIES);
            __syncthreads();
            add_dots<RK, RQ, CHUNK, PITCH>(score, k_tile, q_tile, ty, tx);
            add_dots<RK, RQ, CHUNK, PITCH>(slope, v_tile, dy_tile, ty, tx);
        }
        for (int r = 0; r < RQ; r++) {
            const int i = q0 + tx + 16 * r;
            const float logarithm = i < QUERIES ? lse[row + i] : 0.0f, part = i < QUERIES ? delta[row + i] : 0.0f;
            for (int s = 0; s < RK; s++) {
                const bool visible = seen[s] && i < QUERIES && (!CAUSAL || k0 + ty + 16 * s <= i);
                const float weight = visible ? expf(score[s][r] * SCALE - logarithm) : 0.0f;
                const float factor = kept((unsigned long long)row + i, k0 + ty + 16 * s);
                weights[(ty + 16 * s) * (BQ + 4) + tx + 16 * r] = weight * factor;
                changes[(ty + 16 * s) * (BQ + 4) + tx + 16 * r] = visible ? weight * (slope[s][r] * factor - part) * SCALE : 0.0f;
            }
        }
        #pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            if (CHUNKS > 1) {
                __syncthreads();
                fetch<CHUNK, DEPTH, Index>(q_tile, own_q, q0, BQ, chunk, Q_WIDTH, QUERIES);
                fetch<CHUNK, DEPTH, Index>(dy_tile, own_dy, q0, BQ, chunk, HEADS * DEPTH, QUERIES);
            }
            __syncthreads();
            if (4 * tx < CHUNK) {
                add_products<RK, BQ, BQ + 4, PITCH>(to_keys[chunk], changes, q_tile, ty, 4 * tx);
                add_products<RK, BQ, BQ + 4, PITCH>(to_values[chunk], weights, dy_tile, ty, 4 * tx);
            }
        }
    }
}
for (int s = 0; s < RK; s++) {
    const Index j = k0 + ty + 16 * s;
    if (j >= KEYS) continue;
    for (int chunk = 0; chunk < CHUNKS; chunk++) for (int u = 0; u < 4; u++) {
        const int c = chunk * CHUNK + 4 * tx + u;
        if (4 * tx >= CHUNK || c >= DEPTH) continue;
        store(dk + (b * KEYS + j) * K_WIDTH + K_START + kv_head * DEPTH + c, to_keys[chunk][s][u]);
        store(dv + (b * KEYS + j) * V_WIDTH + V_START + kv_head * DEPTH + c, to_values[chunk][s][u]);
    }
}
