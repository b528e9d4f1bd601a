// Threads stand as in the forward kernel. The weights are recomputed from the logarithms of their sums.
constexpr int PITCH = CHUNK + 4, BQ = 16 * RQ, BK = 16 * RK;
__shared__ __align__(16) float q_tile[BQ * PITCH], dy_tile[BQ * PITCH], k_tile[BK * PITCH], v_tile[BK * PITCH], changes[BQ * (BK + 4)];
const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
const int head = blockIdx.x % HEADS, kv_head = head / (HEADS / KV_HEADS), q0 = blockIdx.y * BQ;
const Index b = blockIdx.x / HEADS;
q += b * QUERIES * Q_WIDTH + Q_START + head * DEPTH;
dy += (b * QUERIES * HEADS + head) * DEPTH;
k += b * KEYS * K_WIDTH + K_START + kv_head * DEPTH;
v += b * KEYS * V_WIDTH + V_START + kv_head * DEPTH;
float out[CHUNKS][RQ][4] = {}, logarithm[RQ], part[RQ];
for (int r = 0; r < RQ; r++) {
    const int i = q0 + ty + 16 * r;
    logarithm[r] = i < QUERIES ? lse[(Index)blockIdx.x * QUERIES + i] : 0.0f;
    part[r] = i < QUERIES ? delta[(Index)blockIdx.x * QUERIES + i] : 0.0f;
}
const int end = CAUSAL ? min(KEYS, q0 + BQ) : KEYS;
for (int k0 = 0; k0 < end; k0 += BK) {
    float score[RQ][RK] = {}, slope[RQ][RK] = {};
    #pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        __syncthreads();
        if (CHUNKS > 1 || k0 == 0) {
            fetch<CHUNK, DEPTH, Index>(q_tile, q, q0, BQ, chunk, Q_WIDTH, QUERIES);
            fetch<CHUNK, DEPTH, Index>(dy_tile, dy, q0, BQ, chunk, HEADS * DEPTH, QUERIES);
        }
        fetch<CHUNK, DEPTH, Index>(k_tile, k, k0, BK, chunk, K_WIDTH, KEYS);
        fetch<CHUNK, DEPTH, Index>(v_tile, v, k0, BK, chunk, V_WIDTH, KEYS);
        __syncthreads();
        add_dots<RQ, RK, CHUNK, PITCH>(score, q_tile, k_tile, ty, tx);
        add_dots<RQ, RK, CHUNK, PITCH>(slope, dy_tile, v_tile, ty, tx);
    }
    for (int s = 0; s < RK; s++) {
        const int j = k0 + tx + 16 * s;
        const bool seen = j < KEYS && (!MASKED || load(mask[b * KEYS + j]) != 0.0f);
        for (int r = 0; r < RQ; r++) {
            const bool visible = seen && (!CAUSAL || j <= q0 + ty + 16 * r);
            const float weight = visible ? expf(score[r][s] * SCALE - logarithm[r]) : 0.0f;
            const float factor = kept((unsigned long long)blockIdx.x * QUERIES + q0 + ty + 16 * r, j);
            changes[(ty + 16 * r) * (BK + 4) + tx + 16 * s] = visible ? weight * (slope[r][s] * factor - part[r]) * SCALE : 0.0f;
        }
    }
    #pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        if (CHUNKS > 1) {
            __syncthreads();
            fetch<CHUNK, DEPTH, Index>(k_tile, k, k0, BK, chunk, K_WIDTH, KEYS);
        }
        __syncthreads();
        if (4 * tx < CHUNK) add_products<RQ, BK, BK + 4, PITCH>(out[chunk], changes, k_tile, ty, 4 * tx);
    }
}
for (int r = 0; r < RQ; r++) {
    const Index i = q0 + ty + 16 * r;
    if (i >= QUERIES) continue;
    for (int chunk = 0; chunk < CHUNKS; chunk++) for (int u = 0; u < 4; u++) {
        const int c = chunk * CHUNK + 4 * tx + u;
        if (4 * tx < CHUNK && c < DEPTH) store(dq + (b * QUERIES + i) * Q_WIDTH + Q_START + head * DEPTH + c, out[chunk][r][u]);
    }
}
