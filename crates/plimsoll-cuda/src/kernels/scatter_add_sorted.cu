// A block for each position in the order; the first of equal indices adds them all.
const int first = blockIdx.x;
const long long number = (long long)numbers[order[first]];
if (number < 0 || number >= ROWS || (first > 0 && (long long)numbers[order[first - 1]] == number)) return;
const Index c = ((Index)blockIdx.y * 256 + threadIdx.x) * EACH;
if (c >= WIDTH) return;
float sum[EACH] = {};
int at = first;
while (at < COUNT) {
    // Four rows at a time, added in their order.
    float rows[4][EACH];
    int found = 0;
    #pragma unroll
    for (int r = 0; r < 4; r++) {
        const int place = at + r < COUNT ? order[at + r] : -1;
        if (found == r && place >= 0 && (long long)numbers[place] == number) {
            load_vector(rows[r], given + (Index)place * WIDTH + c);
            found++;
        }
    }
    #pragma unroll
    for (int r = 0; r < 4; r++) if (r < found) for (int u = 0; u < EACH; u++) sum[u] += rows[r][u];
    at += found;
    if (found < 4) break;
}
store_vector(out + (Index)number * WIDTH + c, sum);
