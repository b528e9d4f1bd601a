// The cell states of an LSTM after each step, from its gates: a thread walks over all steps of a unit.
const Index at = (Index)blockIdx.x * 256 + threadIdx.x;
if (at >= (Index)BATCH * UNITS) return;
const Index b = at / UNITS, unit = at % UNITS;
float c = STARTED ? load(started[at]) : 0.0f;
#pragma unroll 4
for (int step = 0; step < STEPS; step++) {
    const Index t = b * STEPS + (REVERSE ? STEPS - 1 - step : step);
    const float i = load(gates[t * 4 * UNITS + unit]), f = load(gates[(t * 4 + 1) * UNITS + unit]), g = load(gates[(t * 4 + 2) * UNITS + unit]);
    if (!MASKED || load(mask[t]) != 0.0f) c = f * c + i * g;
    cells[t * UNITS + unit] = c;
}
