// The server's row kernels: dedupe, gather, aggregate and the optimizers, fused over rows.
//
// Every float operation here is one IEEE add, multiply, divide or square root, in the order that
// torch_kernels.py spells out, so both give the same bits; compile with -ffp-contract=off and never with
// -ffast-math. Rows far apart in memory cost a cache miss each, so loops prefetch some rows ahead.
// Scratch memory is thread_local: calls from several threads do not meet.
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>
#ifdef __linux__
#include <climits>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <ctime>
#include <unistd.h>
#endif

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GLIBC__)
#define HOT __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define HOT
#endif
#define INLINE static inline __attribute__((always_inline))
#define API extern "C" __attribute__((visibility("default")))

enum { OUT_OF_RANGE = -1, DUPLICATE = -2, NO_MEMORY = -3 };
enum Rule { SGD = 0, ADAGRAD = 1, ROWWISE_ADAGRAD = 2, ADAM = 3 };

// A table (or dense slice) with its optimizer state; mirrored by native.KernelState.
struct State {
    float* value;
    float* first;
    float* second;
    uint32_t* counts;
    const float* bias;  // [bias_steps][2]: 1/(1-b1^t), 1/sqrt(1-b2^t)
    int64_t bias_steps;
    int64_t rows;
    int64_t width;
    int32_t rule;
    float beta1, rest1, beta2, rest2, eps;
};

struct Scalars {
    float weight, divisor, decay, step, root;
};

namespace {

constexpr int64_t AHEAD = 20;
constexpr int64_t CHUNK = 128;
constexpr int64_t BLOCK = 512;

// Open addressing over 32-bit keys. A slot is live when its stamp is not older than `base`, so a
// new call starts by raising `base` instead of clearing, and may use any prefix of the slots.
struct Hash {
    struct Slot {
        uint32_t key, stamp;
    };
    std::vector<Slot> slots;
    uint32_t base = 1, mask = 0;
    int shift = 0;

    void begin(int64_t keys) {
        int bits = 10;
        while ((int64_t(1) << bits) < 2 * keys) ++bits;
        const size_t size = size_t(1) << bits;
        if (size > slots.size()) {
            slots = std::vector<Slot>();
            slots.assign(size, Slot{0, 0});
            base = 1;
        }
        if (base > 0x7fffffffu) {
            slots.assign(slots.size(), Slot{0, 0});
            base = 1;
        }
        mask = uint32_t(size - 1);
        shift = 32 - bits;
    }
    // Position of key; `next` if it is new, which then becomes its position.
    inline __attribute__((always_inline)) uint32_t put(uint32_t key, uint32_t next) {
        uint32_t at = (key * 0x9E3779B1u) >> shift;
        for (;; at = (at + 1) & mask) {
            Slot& slot = slots[at];
            if (slot.stamp < base) {
                slot = Slot{key, base + next};
                return next;
            }
            if (slot.key == key) return slot.stamp - base;
        }
    }
    void finish(int64_t used) { base += uint32_t(used); }
};

struct Scratch {
    Hash hash;
    std::vector<int32_t> first, second;
};
thread_local Scratch scratch;

INLINE void prefetch_row(const float* row, int64_t width) {
    const char* at = reinterpret_cast<const char*>(row);
    for (int64_t byte = 0; byte < width * 4; byte += 64) __builtin_prefetch(at + byte, 1, 3);
    __builtin_prefetch(at + width * 4 - 1, 1, 3);
}

// One optimizer step on n neighbouring values; EXACT divides, otherwise `divisor` is a reciprocal
// of a power of two (same bits, no division).
template <int RULE, bool EXACT>
INLINE void step_values(const State& t, float* __restrict w, float* __restrict a, float* __restrict b,
                        const float* __restrict g, int64_t n, Scalars s) {
    for (int64_t j = 0; j < n; ++j) {
        float x = s.weight * g[j];
        x = EXACT ? x / s.divisor : x * s.divisor;
        x = x + s.decay * w[j];
        if (RULE == SGD) w[j] = w[j] - s.step * x;
        if (RULE == ADAGRAD) {
            a[j] = a[j] + x * x;
            w[j] = w[j] - s.step * (x / (std::sqrt(a[j]) + t.eps));
        }
        if (RULE == ADAM) {
            a[j] = t.beta1 * a[j] + t.rest1 * x;
            b[j] = t.beta2 * b[j] + t.rest2 * (x * x);
            w[j] = w[j] - s.step * (a[j] / (std::sqrt(b[j]) * s.root + t.eps));
        }
    }
}

INLINE void step_rowwise(const State& t, float* __restrict w, float* __restrict a,
                         const float* __restrict g, int64_t n, Scalars s) {
    float sum = 0.0f;
    for (int64_t j = 0; j < n; ++j) {  // in column order: part of the definition
        const float x = s.weight * g[j] / s.divisor + s.decay * w[j];
        sum = sum + x * x;
    }
    *a = *a + sum / float(n);
    const float scale = std::sqrt(*a) + t.eps;
    for (int64_t j = 0; j < n; ++j) {
        const float x = s.weight * g[j] / s.divisor + s.decay * w[j];
        w[j] = w[j] - s.step * (x / scale);
    }
}

struct Batch {
    const int32_t* index;  // null: every row, in order
    int64_t n;
    const float* grad;
    const float* contributors;  // null: `divisor` for all
    const int32_t* slot;        // with index null: gradient row of a table row, or -1
};

template <int RULE, int W>
INLINE void step_row(const State& t, int64_t row, const float* g, Scalars s) {
    const int64_t w = W ? W : t.width;
    float* value = t.value + row * w;
    if (RULE == ROWWISE_ADAGRAD) return step_rowwise(t, value, t.first + row, g, w, s);
    if (RULE == ADAM) {
        const uint32_t count = ++t.counts[row];
        const int64_t at = count < t.bias_steps ? count : t.bias_steps - 1;
        s.step = s.step * t.bias[2 * at];
        s.root = t.bias[2 * at + 1];
    }
    float* a = RULE == SGD ? nullptr : t.first + row * w;
    float* b = RULE == ADAM ? t.second + row * w : nullptr;
    step_values<RULE, true>(t, value, a, b, g, w, s);
}

template <int RULE, int W>
INLINE void prefetch_state(const State& t, int64_t row) {
    const int64_t w = W ? W : t.width;
    prefetch_row(t.value + row * w, w);
    if (RULE == ROWWISE_ADAGRAD) __builtin_prefetch(t.first + row, 1, 3);
    if (RULE == ADAGRAD || RULE == ADAM) prefetch_row(t.first + row * w, w);
    if (RULE == ADAM) {
        prefetch_row(t.second + row * w, w);
        __builtin_prefetch(t.counts + row, 1, 3);
    }
}

template <int RULE, int W>
INLINE void step_listed(const State& t, const Batch& batch, Scalars s) {
    const int64_t w = W ? W : t.width;
    for (int64_t i = 0; i < batch.n; ++i) {
        if (i + AHEAD < batch.n) prefetch_state<RULE, W>(t, batch.index[i + AHEAD]);
        if (batch.contributors) s.divisor = batch.contributors[i];
        step_row<RULE, W>(t, batch.index[i], batch.grad + i * w, s);
    }
}

template <int RULE>
INLINE void step_all(const State& t, const Batch& batch, const float* zeros, Scalars s) {
    const float divisor = s.divisor;
    for (int64_t row = 0; row < t.rows; ++row) {
        const int64_t at = batch.slot[row];
        s.divisor = at >= 0 && batch.contributors ? batch.contributors[at] : divisor;
        step_row<RULE, 0>(t, row, at >= 0 ? batch.grad + at * t.width : zeros, s);
    }
}

template <int RULE>
INLINE void step_rows(const State& t, const Batch& batch, const float* zeros, Scalars s) {
    if (!batch.index) return step_all<RULE>(t, batch, zeros, s);
    switch (t.width) {
        case 8: return step_listed<RULE, 8>(t, batch, s);
        case 9: return step_listed<RULE, 9>(t, batch, s);
        case 16: return step_listed<RULE, 16>(t, batch, s);
        case 17: return step_listed<RULE, 17>(t, batch, s);
        case 32: return step_listed<RULE, 32>(t, batch, s);
        case 33: return step_listed<RULE, 33>(t, batch, s);
        default: return step_listed<RULE, 0>(t, batch, s);
    }
}

struct Parts {
    int64_t count;
    const float* const* grad;
    const float* weight;
};

// total[0..n) = sum of weight * grad over the parts, in their order, from position `at` on.
INLINE void combine(const Parts& parts, int64_t at, int64_t n, float* __restrict total) {
    for (int64_t p = 0; p < parts.count; ++p) {
        const float* __restrict g = parts.grad[p] + at;
        const float weight = parts.weight[p];
        if (p == 0)
            for (int64_t j = 0; j < n; ++j) total[j] = weight * g[j];
        else
            for (int64_t j = 0; j < n; ++j) total[j] = total[j] + weight * g[j];
    }
}

template <int RULE, bool EXACT>
INLINE void step_dense(const State& t, const Parts& parts, Scalars s) {
    alignas(64) float total[BLOCK];
    for (int64_t at = 0; at < t.rows; at += BLOCK) {
        const int64_t n = t.rows - at < BLOCK ? t.rows - at : BLOCK;
        const float* g = parts.grad[0] + at;
        s.weight = parts.weight[0];
        if (parts.count > 1) {
            combine(parts, at, n, total);
            g = total;
            s.weight = 1.0f;
        }
        float* a = RULE == SGD ? nullptr : t.first + at;
        float* b = RULE == ADAM ? t.second + at : nullptr;
        step_values<RULE, EXACT>(t, t.value + at, a, b, g, n, s);
    }
}

template <int RULE>
INLINE void step_dense_any(const State& t, const Parts& parts, Scalars s) {
    int exponent;
    const float inverse = 1.0f / s.divisor;
    if (std::frexp(s.divisor, &exponent) != 0.5f || !std::isnormal(inverse))
        return step_dense<RULE, true>(t, parts, s);
    s.divisor = inverse;
    step_dense<RULE, false>(t, parts, s);
}

template <int W>
INLINE void add_rows(const float* grad, const int32_t* at, int64_t n, int64_t width, float weight,
                     float* total) {
    const int64_t w = W ? W : width;
    for (int64_t i = 0; i < n; ++i) {
        const float* __restrict g = grad + i * w;
        float* __restrict to = total + at[i] * w;
        for (int64_t j = 0; j < w; ++j) to[j] = to[j] + weight * g[j];
    }
}

template <int W>
INLINE int64_t gather_rows(const float* table, int64_t rows, int64_t width, const int32_t* index,
                           int64_t n, float* out) {
    const int64_t w = W ? W : width;
    for (int64_t i = 0; i < n; ++i) {
        if (i + 2 * AHEAD < n) prefetch_row(table + int64_t(uint32_t(index[i + 2 * AHEAD])) * w, w);
        // Read once: the index may lie in memory that another process can write.
        const uint32_t row = uint32_t(__atomic_load_n(index + i, __ATOMIC_RELAXED));
        if (int64_t(row) >= rows) return OUT_OF_RANGE;
        const float* __restrict from = table + int64_t(row) * w;
        float* __restrict to = out + i * w;
        for (int64_t j = 0; j < w; ++j) to[j] = from[j];
    }
    return 0;
}

INLINE uint64_t mix64(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

}  // namespace

#define BY_WIDTH(width, call)  \
    switch (width) {           \
        case 8: call(8);       \
        case 9: call(9);       \
        case 16: call(16);     \
        case 17: call(17);     \
        case 32: call(32);     \
        case 33: call(33);     \
        default: call(0);      \
    }

API int64_t gb_abi() { return 5; }

HOT static void add_chunk(const float* grad, const int32_t* at, int64_t n, int64_t width, float weight,
                          float* total) {
#define ADD(W) return add_rows<W>(grad, at, n, width, weight, total)
    BY_WIDTH(width, ADD)
#undef ADD
}

API HOT int64_t gb_gather(const float* table, int64_t rows, int64_t width, const int32_t* index, int64_t n,
                          float* out) {
#define GATHER(W) return gather_rows<W>(table, rows, width, index, n, out)
    BY_WIDTH(width, GATHER)
#undef GATHER
}

// 0 when every index is in [0, rows), without branches.
API HOT int64_t gb_check_range(const int32_t* index, int64_t n, int64_t rows) {
    uint32_t top = 0;
    for (int64_t i = 0; i < n; ++i) {
        const uint32_t value = uint32_t(index[i]);
        top = value > top ? value : top;
    }
    return n && int64_t(top) >= rows ? OUT_OF_RANGE : 0;
}

API int64_t gb_check_unique(const int32_t* index, int64_t n, int64_t rows) try {
    if (gb_check_range(index, n, rows)) return OUT_OF_RANGE;
    Hash& hash = scratch.hash;
    hash.begin(n);
    bool repeated = false;
    for (int64_t i = 0; i < n; ++i) repeated |= hash.put(uint32_t(index[i]), uint32_t(i)) != uint32_t(i);
    hash.finish(n);
    return repeated ? DUPLICATE : 0;
} catch (const std::bad_alloc&) {
    return NO_MEMORY;
}

// Number of unique rows, or a negative code. `index` and `inverse` have room for batch * fields.
API int64_t gb_dedupe(const int32_t* ids, int64_t batch, int64_t fields, const int64_t* offsets,
                      int64_t shards, int32_t* index, int64_t* counts, int32_t* inverse) try {
    const int64_t n = batch * fields;
    Hash& hash = scratch.hash;
    hash.begin(n);
    uint32_t used = 0;
    bool outside = false;
    if (int64_t(scratch.first.size()) < n) scratch.first.resize(n), scratch.second.resize(n);
    int32_t* keys = shards == 1 ? index : scratch.first.data();
    for (int64_t r = 0, i = 0; r < batch; ++r)
        for (int64_t f = 0; f < fields; ++f, ++i) {
            const int64_t key = offsets[f] + ids[i];
            outside |= ids[i] < 0 || key < 0 || key > INT32_MAX;
            const uint32_t at = hash.put(uint32_t(key), used);
            keys[used] = int32_t(key);  // overwritten unless new: cheaper than a branch
            used += at == used;
            inverse[i] = int32_t(at);
        }
    hash.finish(used);
    if (outside) return OUT_OF_RANGE;
    std::memset(counts, 0, size_t(shards) * sizeof(int64_t));
    counts[0] = used;
    if (shards == 1) return used;
    counts[0] = 0;
    int32_t* place = scratch.second.data();
    for (uint32_t u = 0; u < used; ++u) place[u] = int32_t(counts[uint32_t(keys[u]) % uint32_t(shards)]++);
    std::vector<int64_t> start(size_t(shards), 0);
    for (int64_t s = 1; s < shards; ++s) start[s] = start[s - 1] + counts[s - 1];
    for (uint32_t u = 0; u < used; ++u) {
        const uint32_t key = uint32_t(keys[u]);
        place[u] += int32_t(start[key % uint32_t(shards)]);
        index[place[u]] = int32_t(key / uint32_t(shards));
    }
    for (int64_t i = 0; i < n; ++i) inverse[i] = place[inverse[i]];
    return used;
} catch (const std::bad_alloc&) {
    return NO_MEMORY;
}

API int64_t gb_segment_sum(const float* grad, const int32_t* inverse, int64_t n, int64_t width, float* out,
                           int64_t unique) {
    if (gb_check_range(inverse, n, unique)) return OUT_OF_RANGE;
    std::memset(out, 0, size_t(unique) * size_t(width) * sizeof(float));
    add_chunk(grad, inverse, n, width, 1.0f, out);
    return 0;
}

// Number of distinct rows over all parts, or a negative code. Outputs have room for the sum of n.
// A new row starts at -0.0, the neutral element of addition: its first addend is thus assigned.
// `contributors` adds up the `share` (null: 1) of every part that carries the row.
API int64_t gb_aggregate(int64_t parts, const int32_t* const* index, const float* const* grad,
                         const int64_t* n, const float* weight, const float* share, int64_t width,
                         int32_t* out_index, float* total, float* contributors) try {
    int64_t most = 0;
    for (int64_t p = 0; p < parts; ++p) most += n[p];
    Hash& hash = scratch.hash;
    hash.begin(most);
    if (int64_t(scratch.first.size()) < most) scratch.first.resize(most), scratch.second.resize(most);
    int32_t* last = scratch.first.data();
    uint32_t used = 0;
    for (int64_t p = 0; p < parts; ++p) {
        const float counts = share ? share[p] : 1.0f;
        for (int64_t from = 0; from < n[p]; from += CHUNK) {
            const int64_t size = n[p] - from < CHUNK ? n[p] - from : CHUNK;
            const uint32_t before = used;
            int32_t at[CHUNK];
            for (int64_t i = 0; i < size; ++i) {
                const int32_t key = index[p][from + i];
                at[i] = int32_t(hash.put(uint32_t(key), used));
                if (uint32_t(at[i]) == used) {
                    contributors[used] = 0.0f;
                    last[used] = -1;
                    out_index[used++] = key;
                }
                contributors[at[i]] += last[at[i]] != int32_t(p) ? counts : 0.0f;
                last[at[i]] = int32_t(p);
            }
            for (int64_t j = before * width; j < int64_t(used) * width; ++j) total[j] = -0.0f;
            add_chunk(grad[p] + from * width, at, size, width, weight[p], total);
        }
    }
    hash.finish(used);
    return used;
} catch (const std::bad_alloc&) {
    return NO_MEMORY;
}

// One optimizer step on the listed rows (each at most once), or, with index null, on all of them.
API HOT void gb_step_rows(const State* t, const int32_t* index, int64_t n, const float* grad,
                          const float* contributors, const int32_t* slot, const float* zeros, float weight,
                          float divisor, float lr, float decay) {
    const Batch batch{index, n, grad, contributors, slot};
    const Scalars s{weight, divisor, decay, lr, 1.0f};
    switch (t->rule) {
        case SGD: return step_rows<SGD>(*t, batch, zeros, s);
        case ADAGRAD: return step_rows<ADAGRAD>(*t, batch, zeros, s);
        case ROWWISE_ADAGRAD: return step_rows<ROWWISE_ADAGRAD>(*t, batch, zeros, s);
        default: return step_rows<ADAM>(*t, batch, zeros, s);
    }
}

// One optimizer step on a dense slice of t->rows values; sums the parts on the way.
API HOT void gb_step_dense(const State* t, int64_t parts, const float* const* grad, const float* weight,
                           float divisor, float step, float root, float decay) {
    const Parts all{parts, grad, weight};
    const Scalars s{1.0f, divisor, decay, step, root};
    switch (t->rule) {
        case SGD: return step_dense_any<SGD>(*t, all, s);
        case ADAM: return step_dense_any<ADAM>(*t, all, s);
        default: return step_dense_any<ADAGRAD>(*t, all, s);
    }
}

// running += momentum * (total / weight_sum - running), the total taken over the parts.
API HOT void gb_average(float* running, int64_t n, int64_t parts, const float* const* grad,
                        const float* weight, float weight_sum, float momentum) {
    alignas(64) float total[BLOCK];
    for (int64_t at = 0; at < n; at += BLOCK) {
        const int64_t size = n - at < BLOCK ? n - at : BLOCK;
        combine(Parts{parts, grad, weight}, at, size, total);
        float* __restrict to = running + at;
        for (int64_t j = 0; j < size; ++j) to[j] = to[j] + momentum * (total[j] / weight_sum - to[j]);
    }
}

// Row i gets the values of global row first + i * stride: a hash of (seed, row, column), uniform
// over 2^24 equally spaced points of [-1, 1), times scale.
API HOT void gb_init_rows(float* table, int64_t rows, int64_t width, uint64_t seed, int64_t first,
                          int64_t stride, float scale) {
    const uint64_t key = mix64(seed + 0x9E3779B97F4A7C15ull);
    for (int64_t i = 0; i < rows; ++i) {
        const uint64_t row = mix64(key + 0x9E3779B97F4A7C15ull * uint64_t(first + i * stride));
        const uint32_t low = uint32_t(row), high = uint32_t(row >> 32);
        float* __restrict out = table + i * width;
        for (int64_t j = 0; j < width; ++j) {
            uint32_t x = low + uint32_t(j) * 0x9E3779B9u;
            x = (x ^ (x >> 16)) * 0x7FEB352Du;
            x = (x ^ high ^ (x >> 15)) * 0x846CA68Bu;
            x = (x ^ (x >> 16)) >> 8;
            out[j] = scale * (float(int32_t(x)) * 0x1p-23f - 1.0f);
        }
    }
}

namespace {

enum Halves { FP16 = 0, BF16 = 1 };
constexpr uint32_t INFINITE = 0x7f800000, LARGEST_FP16 = 0x477fe000, QUIET_FP16 = 0x7e00, QUIET_BF16 = 0x7fc0;

INLINE uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Nearest, ties to even; what is too large becomes the largest. Every branch is a choice between two values.
INLINE uint16_t fp16_of(float value) {
    const uint32_t bits = bits_of(value), sign = (bits & 0x80000000) >> 16, size = bits & 0x7fffffff;
    const uint32_t within = size < LARGEST_FP16 ? size : LARGEST_FP16;
    const uint32_t normal = (within + ((within >> 13) & 1) + 0xfff - (112u << 23)) >> 13;
    const uint32_t small = bits_of(float_of(within) + 0.5f) - (126u << 23);  // the addition rounds it to 2^-24
    const uint32_t half = within < (113u << 23) ? small : normal;
    return uint16_t(size > INFINITE ? QUIET_FP16 : sign | half);
}

INLINE float of_fp16(uint16_t half) {
    const uint32_t sign = uint32_t(half & 0x8000) << 16, size = uint32_t(half & 0x7fff) << 13;
    const uint32_t normal = size + (size >= (31u << 23) ? 224u << 23 : 112u << 23);
    const float small = float_of(size + (113u << 23)) - float_of(113u << 23);
    return float_of(sign | (size < (1u << 23) ? bits_of(small) : normal));
}

INLINE uint16_t bf16_of(float value) {
    const uint32_t bits = bits_of(value);
    const bool number = (bits & 0x7fffffff) <= INFINITE;
    return uint16_t(number ? (bits + ((bits >> 16) & 1) + 0x7fff) >> 16 : QUIET_BF16);
}

INLINE float of_bf16(uint16_t half) { return float_of(uint32_t(half) << 16); }

}  // namespace

// Values in two bytes each: see half_precision.py.
API HOT void gb_narrow(int64_t kind, const float* values, uint16_t* out, int64_t n) {
    if (kind == FP16)
        for (int64_t i = 0; i < n; ++i) out[i] = fp16_of(values[i]);
    else
        for (int64_t i = 0; i < n; ++i) out[i] = bf16_of(values[i]);
}

API HOT void gb_widen(int64_t kind, const uint16_t* halves, float* out, int64_t n) {
    if (kind == FP16)
        for (int64_t i = 0; i < n; ++i) out[i] = of_fp16(halves[i]);
    else
        for (int64_t i = 0; i < n; ++i) out[i] = of_bf16(halves[i]);
}

API HOT void gb_round(int64_t kind, float* values, int64_t n) {
    if (kind == FP16)
        for (int64_t i = 0; i < n; ++i) values[i] = of_fp16(fp16_of(values[i]));
    else
        for (int64_t i = 0; i < n; ++i) values[i] = of_bf16(bf16_of(values[i]));
}

// Denormal inputs and results count as 0 in the calling thread, or do not: see native.py.
API void gb_flush_denormals(int64_t on) {
#if defined(__x86_64__)
    const unsigned bits = 0x8040;  // flush to zero, denormals are zero
    const unsigned now = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(on ? now | bits : now & ~bits);
#elif defined(__aarch64__)
    uint64_t now;
    __asm__ volatile("mrs %0, fpcr" : "=r"(now));
    now = on ? now | (1ull << 24) : now & ~(1ull << 24);
    __asm__ volatile("msr fpcr, %0" : : "r"(now));
#else
    (void)on;
#endif
}

// Turns on a core, first come first served, between processes that share the memory: see gbactl/cpu.py.
// A ticket may go when every earlier one is done. Whoever has waited `ms` in vain takes the turn of a holder
// that is stuck or dead; its late end then changes nothing.
struct Turns {
    std::atomic<uint32_t> next, done;
};

API int64_t gb_turn_take(Turns* turns, int64_t ms) {
    const uint32_t mine = turns->next.fetch_add(1);
#ifdef __linux__
    const timespec limit{time_t(ms / 1000), long(ms % 1000) * 1000000};
    for (uint32_t done = turns->done.load(); int32_t(mine - done) > 0; done = turns->done.load()) {
        const long told = syscall(SYS_futex, &turns->done, FUTEX_WAIT, done, &limit, nullptr, 0);
        uint32_t stuck = done;
        if (told != 0 && errno == ETIMEDOUT) turns->done.compare_exchange_strong(stuck, done + 1);
    }
#endif
    return int64_t(mine);
}

API void gb_turn_end(Turns* turns, int64_t ticket) {
    uint32_t mine = uint32_t(ticket);
    if (!turns->done.compare_exchange_strong(mine, mine + 1)) return;
#ifdef __linux__
    syscall(SYS_futex, &turns->done, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#endif
}
