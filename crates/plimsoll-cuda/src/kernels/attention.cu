// Threads stand in 16 × 16: thread (ty, tx) has the queries ty, ty + 16, … of its block's tile and the keys tx, tx + 16, … of each tile of keys.
constexpr int PITCH = CHUNK + 4, BQ = 16 * RQ, BK = 16 * RK;
const float LOWEST = number(0xff800000);
__shared__ __align__(16) float q_tile[BQ * PITCH], kv_tile[BK * PITCH], weights[BQ * (BK + 4)];
const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
const int head = blockIdx.x % HEADS, kv_head = head / (HEADS / KV_HEADS), q0 = blockIdx.y * BQ;
const Index b = blockIdx.x / HEADS;
q += b * QUERIES * Q_WIDTH + Q_START + head * DEPTH;
k += b * KEYS * K_WIDTH + K_START + kv_head * DEPTH;
v += b * KEYS * V_WIDTH + V_START + kv_head * DEPTH;
float out[CHUNKS][RQ][4] = {}, top[RQ], sum[RQ] = {};
for (int r = 0; r < RQ; r++) top[r] = LOWEST;
if (CHUNKS == 1) fetch<CHUNK, DEPTH, Index>(q_tile, q, q0, BQ, 0, Q_WIDTH, QUERIES);
const int end = CAUSAL ? min(KEYS, q0 + BQ) : KEYS;
for (int k0 = 0; k0 < end; k0 += BK) {
    float score[RQ][RK] = {};
    #pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        __syncthreads();
        if (CHUNKS > 1) fetch<CHUNK, DEPTH, Index>(q_tile, q, q0, BQ, chunk, Q_WIDTH, QUERIES);
        fetch<CHUNK, DEPTH, Index>(kv_tile, k, k0, BK, chunk, K_WIDTH, KEYS);
        __syncthreads();
        add_dots<RQ, RK, CHUNK, PITCH>(score, q_tile, kv_tile, ty, tx);
    }
    bool seen[RK];
    for (int s = 0; s < RK; s++) {
        const int j = k0 + tx + 16 * s;
        seen[s] = j < KEYS && (!MASKED || load(mask[b * KEYS + j]) != 0.0f);
    }
    for (int r = 0; r < RQ; r++) {
        float largest = top[r], added = 0.0f;
        for (int s = 0; s < RK; s++) {
            const bool visible = seen[s] && (!CAUSAL || k0 + tx + 16 * s <= q0 + ty + 16 * r);
            score[r][s] = visible ? score[r][s] * SCALE : LOWEST;
            largest = larger(largest, score[r][s]);
        }
        for (int offset = 8; offset > 0; offset /= 2) largest = larger(largest, __shfl_xor_sync(0xffffffffu, largest, offset, 16));
        // A query that has seen no key yet has no largest product to compare with.
        const float faded = largest == LOWEST ? 1.0f : expf(top[r] - largest);
        for (int s = 0; s < RK; s++) {
            const float weight = largest == LOWEST ? 0.0f : expf(score[r][s] - largest);
            weights[(ty + 16 * r) * (BK + 4) + tx + 16 * s] = weight * kept((unsigned long long)blockIdx.x * QUERIES + q0 + ty + 16 * r, k0 + tx + 16 * s);
            added += weight;
        }
        for (int offset = 8; offset > 0; offset /= 2) added += __shfl_xor_sync(0xffffffffu, added, offset, 16);
        sum[r] = sum[r] * faded + added;
        top[r] = largest;
        for (int chunk = 0; chunk < CHUNKS; chunk++) for (int u = 0; u < 4; u++) out[chunk][r][u] *= faded;
    }
    #pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        __syncthreads();
        fetch<CHUNK, DEPTH, Index>(kv_tile, v, k0, BK, chunk, V_WIDTH, KEYS);
        __syncthreads();
        if (4 * tx < CHUNK) add_products<RQ, BK, BK + 4, PITCH>(out[chunk], weights, kv_tile, ty, 4 * tx);
    }
}
for (int r = 0; r < RQ; r++) {
    const int i = q0 + ty + 16 * r;
    if (i >= QUERIES) continue;
    if (tx == 0) lse[(Index)blockIdx.x * QUERIES + i] = sum[r] == 0.0f ? 0.0f : top[r] + logf(sum[r]);
    for (int chunk = 0; chunk < CHUNKS; chunk++) for (int u = 0; u < 4; u++) {
        const int c = chunk * CHUNK + 4 * tx + u;
        if (4 * tx < CHUNK && c < DEPTH) {
            store(o + ((b * QUERIES + i) * HEADS + head) * DEPTH + c, sum[r] == 0.0f ? 0.0f : out[chunk][r][u] / sum[r]);
        }
    }
}
