// Each warp has 16 queries; the products run on tensor cores in fragments of 16 × 16 by 16 × 8. Lane (g, t) has the rows g and g + 8 of a
// fragment and the columns 2t and 2t + 1.
constexpr int PITCH = WIDTH + 8, BQ = 16 * WARPS, STEPS = WIDTH / 16;
__shared__ __align__(16) Half k_tile[2][BK * PITCH], v_tile[2][BK * PITCH];
const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
// The longest rows of a causal attention first.
const int head = blockIdx.x % HEADS, kv_head = head / (HEADS / KV_HEADS), q0 = (gridDim.y - 1 - blockIdx.y) * BQ;
const Index b = blockIdx.x / HEADS;
q += b * QUERIES * Q_WIDTH + Q_START + head * DEPTH;
k += b * KEYS * K_WIDTH + K_START + kv_head * DEPTH;
v += b * KEYS * V_WIDTH + V_START + kv_head * DEPTH;
const int row = q0 + warp * 16 + g;
unsigned q_part[STEPS][4];
load_fragments<STEPS, DEPTH, Index>(q_part, q, row, t, Q_WIDTH, QUERIES);
float out[STEPS * 2][4] = {}, top[2] = {number(0xff800000), number(0xff800000)}, sum[2] = {};
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
    if (!CAUSAL || k0 <= q0 + warp * 16 + 15) {
        float score[BK / 8][4] = {};
        #pragma unroll
        for (int s = 0; s < STEPS; s++) {
            #pragma unroll
            for (int n = 0; n < BK / 8; n += 2) {
                unsigned keys[4];
                load_matrices(keys, &k_tile[stage][(n * 8 + lane / 16 * 8 + lane % 8) * PITCH + s * 16 + lane / 8 % 2 * 8]);
                multiply_add<Half>(score[n], q_part[s], keys[0], keys[1]);
                multiply_add<Half>(score[n + 1], q_part[s], keys[2], keys[3]);
            }
        }
        if (MASKED || k0 + BK > KEYS || (CAUSAL && k0 + BK > q0 + warp * 16)) {
            #pragma unroll
            for (int n = 0; n < BK / 8; n++) for (int e = 0; e < 4; e++) {
                const int j = k0 + n * 8 + 2 * t + e % 2;
                const bool seen = j < KEYS && (!MASKED || load(mask[b * KEYS + j]) != 0.0f) && (!CAUSAL || j <= row + e / 2 * 8);
                if (!seen) score[n][e] = number(0xff800000);
            }
        }
        #pragma unroll
        for (int r = 0; r < 2; r++) {
            float largest = top[r];
            #pragma unroll
            for (int n = 0; n < BK / 8; n++) largest = fmaxf(largest, fmaxf(score[n][2 * r], score[n][2 * r + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
            // A query that has seen no key yet has no largest product to compare with.
            const float base = largest == number(0xff800000) ? 0.0f : largest * SCALE2;
            const float faded = exp2_fast(top[r] * SCALE2 - base);
            float added = 0.0f;
            #pragma unroll
            for (int n = 0; n < BK / 8; n++) {
                #pragma unroll
                for (int e = 2 * r; e < 2 * r + 2; e++) {
                    score[n][e] = exp2_fast(score[n][e] * SCALE2 - base);
                    added += score[n][e];
                }
                drop(score[n][2 * r], score[n][2 * r + 1], (unsigned long long)blockIdx.x * QUERIES + row + 8 * r, k0 + n * 8 + 2 * t);
            }
            sum[r] = sum[r] * faded + added;
            top[r] = largest;
            #pragma unroll
            for (int n = 0; n < STEPS * 2; n++) for (int e = 2 * r; e < 2 * r + 2; e++) out[n][e] *= faded;
        }
        #pragma unroll
        for (int s = 0; s < BK / 16; s++) {
            const unsigned weights[4] = {pack<Half>(score[2 * s][0], score[2 * s][1]), pack<Half>(score[2 * s][2], score[2 * s][3]),
                                         pack<Half>(score[2 * s + 1][0], score[2 * s + 1][1]), pack<Half>(score[2 * s + 1][2], score[2 * s + 1][3])};
            #pragma unroll
            for (int n = 0; n < STEPS * 2; n += 2) {
                unsigned values[4];
                load_matrices_transposed(values, &v_tile[stage][(s * 16 + lane % 16) * PITCH + n * 8 + lane / 16 * 8]);
                multiply_add<Half>(out[n], weights, values[0], values[1]);
                multiply_add<Half>(out[n + 1], weights, values[2], values[3]);
            }
        }
    }
    __syncthreads();
}
#pragma unroll
for (int r = 0; r < 2; r++) {
    sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
    sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
    const int i = row + 8 * r;
    if (i >= QUERIES) continue;
    if (t == 0) lse[(Index)blockIdx.x * QUERIES + i] = sum[r] == 0.0f ? 0.0f : top[r] * SCALE + logf(sum[r]);
    const float share = sum[r] == 0.0f ? 0.0f : 1.0f / sum[r];
    #pragma unroll
    for (int n = 0; n < STEPS * 2; n++) if (n * 8 + 2 * t < DEPTH) {
        *(unsigned*)(o + ((b * QUERIES + i) * HEADS + head) * DEPTH + n * 8 + 2 * t) = pack<Half>(out[n][2 * r] * share, out[n][2 * r + 1] * share);
    }
}
