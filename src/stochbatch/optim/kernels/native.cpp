// One SBS step over all float32 layers on the CPU: statistics, scores, update, tally.
//
// Plain C interface, no torch headers: it builds in 3 seconds and depends on no ABI but C's.
// The update is bit-identical to the eager step. What that takes:
//   * -ffp-contract=off: the compiler may not fuse; std::fma stands exactly where torch's
//     kernels fuse (torch.add with alpha, torch.addcmul);
//   * divisions are divisions (no reciprocal estimates) and the power of two is the same
//     polynomial in the same order;
//   * the coin of an element depends on its row-major index, never on chunk or thread.
// Statistics are doubles, merged chunk by chunk in a fixed order: the number of threads does
// not show in any result.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace {

constexpr int64_t kChunk = 1 << 16;  // what a thread takes at a time: long, as prefetching starts anew
constexpr int64_t kRun = 1 << 9;     // elements whose chances wait in the first-level cache
constexpr int64_t kAhead = kRun;     // how far to prefetch: the processor's own stops at each page
constexpr int kReadings = 3;
constexpr double kBitsPerNat = 1.4426950408889634;
constexpr double kZeroSpread = 1e-6;
constexpr int32_t kMostBatches = std::numeric_limits<int32_t>::max();

// ---- What Python passes; every field is 8 bytes so that array('q') / array('d') are these. ----

struct Memory {  // changes from step to step
  float *weight;
  const float *grad;
  float *grad_mean;  // null in the mean field
  int32_t *batches;  // null in the mean field
  float *buffer;     // null without momentum
  float *tally;   // steps, mean probability, mean batches
};
struct Facts {  // stays until parameters or groups change
  int64_t size;   // of what is here
  int64_t whole;  // of the whole tensor
  // Memory order is [outer, middle, inner], row-major order [outer, inner, middle]:
  // channels-last. Contiguous: middle = 1, inner = size. In the whole tensor, the row-major
  // order of which decides the coins, outer neighbours are `pitch` apart, and the first
  // element has the index `offset`.
  int64_t middle, inner, pitch, offset;
  int64_t index;  // of the parameter
  int64_t peers;  // number of its class: layers of one class are compared; 0, 1, 2, ...
  int64_t group;  // which of the options
};
struct Options {  // of a parameter group
  double lr, alpha, lambd, probability /* negative: adaptive */, momentum, weight_decay;
  double reading /* total, mean, weighted */, linear, nesterov, maximize;
};

// ---- Vectors of 8 ----

// Written with the vector types of GCC and Clang and not as loops for the compiler to vectorise:
// GCC turns "w = drawn ? moved : w" into masked stores, on which AMD processors spend a third of the time.
constexpr int kLanes = 8;
typedef float F8 __attribute__((vector_size(32)));
typedef int32_t I8 __attribute__((vector_size(32)));
typedef uint32_t U8 __attribute__((vector_size(32)));
typedef double D4 __attribute__((vector_size(32)));
typedef int32_t I4 __attribute__((vector_size(16)));
typedef float F4 __attribute__((vector_size(16)));

template <typename Vector, typename T>
inline Vector load(const T *from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}
template <typename Vector, typename T>
inline void store(T *to, Vector vector) {
  std::memcpy(to, &vector, sizeof vector);
}
inline F8 all(float x) { return F8{x, x, x, x, x, x, x, x}; }
inline F8 abs(F8 x) { return (F8)((U8)x & 0x7FFFFFFFu); }

#ifdef __FMA__
inline D4 widen(F4 x) { return (D4)_mm256_cvtps_pd((__m128)x); }  // GCC's own takes 3 times as long
inline D4 fma(D4 x, D4 y, D4 z) { return (D4)_mm256_fmadd_pd((__m256d)x, (__m256d)y, (__m256d)z); }
inline F8 fma(F8 x, F8 y, F8 z) { return (F8)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)z); }
// The second operand is the result when either is a NaN.
inline F8 max(F8 x, F8 y) { return (F8)_mm256_max_ps((__m256)x, (__m256)y); }
inline F8 min(F8 x, F8 y) { return (F8)_mm256_min_ps((__m256)x, (__m256)y); }
#else
inline D4 widen(F4 x) { return __builtin_convertvector(x, D4); }
inline D4 fma(D4 x, D4 y, D4 z) { return x * y + z; }
inline F8 fma(F8 x, F8 y, F8 z) {
  for (int i = 0; i < kLanes; ++i) z[i] = std::fma(x[i], y[i], z[i]);
  return z;
}
inline F8 max(F8 x, F8 y) { return x > y ? x : y; }
inline F8 min(F8 x, F8 y) { return x < y ? x : y; }
#endif

// ---- Coins ----

constexpr uint32_t kMultipliers[] = {0xED5AD4BBu, 0xAC4C1B51u, 0x31848BABu};

uint32_t mix(uint32_t word) {
  word = (word ^ word >> 17) * kMultipliers[0];
  word = (word ^ word >> 11) * kMultipliers[1];
  word = (word ^ word >> 15) * kMultipliers[2];
  return word ^ word >> 14;
}

uint32_t key(uint32_t chain, uint64_t seed, uint64_t index, uint64_t block, uint64_t step) {
  for (uint64_t word : {seed, seed >> 32, index, block, step, step >> 32})
    chain = mix(chain ^ static_cast<uint32_t>(word));
  return chain;
}

// ---- Statistics ----

struct Sums {
  double total, squares;  // sum of |g|; sum of its squared deviations from the mean
};

Sums measure(const float *grad, int64_t n) {
  constexpr int kWays = 4;  // independent sums: an addition takes 3 or 4 cycles
  const double count = static_cast<double>(n);
  const auto sweep = [&](double from) __attribute__((always_inline)) {
    D4 sum[kWays] = {}, square[kWays] = {};
    int64_t i = 0;
    for (; i + 4 * kWays <= n; i += 4 * kWays) {
      __builtin_prefetch(grad + i + kAhead);
#pragma GCC unroll 4
      for (int way = 0; way < kWays; ++way) {
        const D4 d = widen((F4)(load<I4>(grad + i + 4 * way) & 0x7FFFFFFF)) - from;
        sum[way] += d;
        square[way] = fma(d, d, square[way]);
      }
    }
    Sums sums = {0, 0};
    for (; i < n; ++i) {
      const double d = std::fabs(static_cast<double>(load<float>(grad + i))) - from;
      sums.total += d;
      sums.squares += d * d;
    }
    for (int way = 0; way < kWays; ++way)
      for (int lane = 0; lane < 4; ++lane) {
        sums.total += sum[way][lane];
        sums.squares += square[way][lane];
      }
    return sums;
  };
  const Sums sums = sweep(0.0);
  const double squares = sums.squares - sums.total * sums.total / count;
  // One sweep is enough unless most of the digits cancel.
  if (squares > 1e-3 * sums.squares) return {sums.total, squares};
  return {sums.total, sweep(sums.total / count).squares};
}

// ---- Update ----

struct Move {                   // constants of a layer in a step
  float centre, slope, shift;   // slope and shift negated: the sigmoid wants the negative
  float chance;                 // 2**24 times the fixed probability
  float rate, momentum, decay;  // rate negated
  uint32_t sign;                // the sign bit, if ascending
  bool adaptive, linear, nesterov, decays;
};

// The next functions work on several vectors side by side, operation by operation: one vector
// alone is a chain of 30 dependent operations that fills the processor's window with
// waiting instructions. (-fschedule-insns keeps GCC from undoing that.)
#define EACH _Pragma("GCC unroll 8") for (int j = 0; j < ways; ++j)
#define INLINE __attribute__((always_inline)) inline

// Write 2**24 / (1 + 2**bits): the operations of the eager step, scaled by exact powers of two,
// so that a 24-bit integer can be compared with it.
template <int ways>
INLINE void find_chances(const Move &m, const float *grad, float *chance, F8 &sum) {
  // Adding 1.5 * 2**23 rounds to an integer, half to even, and leaves it in the low bits; the
  // 128 more make of them the exponent field of 2**(whole + 1), hence half the coefficients.
  constexpr float magic = 12582912.0f + 128.0f;
  F8 bits[ways], rounded[ways], power[ways];
  EACH bits[j] = abs(load<F8>(grad + j * kLanes)) - m.centre;
  EACH bits[j] = bits[j] * m.slope;
  EACH bits[j] = bits[j] + m.shift;
  EACH bits[j] = max(all(-126.0f), bits[j]);
  EACH bits[j] = min(all(126.0f), bits[j]);
  EACH rounded[j] = bits[j] + magic;
  EACH power[j] = rounded[j] - magic;
  EACH bits[j] = bits[j] - power[j];
  EACH power[j] = bits[j] * (0.5f * 0.001326472731307149f);
  const auto horner = [&](float coefficient) __attribute__((always_inline)) {
    EACH power[j] = power[j] + 0.5f * coefficient;
    EACH power[j] = power[j] * bits[j];
  };
  horner(0.009671512991189957f);
  horner(0.05550733581185341f);
  horner(0.24022242426872253f);
  horner(0.6931470036506653f);
  EACH power[j] = power[j] + 0.5f;
  EACH power[j] = power[j] * (F8)((U8)rounded[j] << 23);
  EACH power[j] = power[j] + 1.0f;
  EACH power[j] = 0x1p24f / power[j];
  EACH store(chance + j * kLanes, power[j]);
  EACH sum += power[j];
}

// Move the scalars at `at`, whose indices have the low words `low`, `low + step`, ...
// Seldom used options are looked up as we go, so that few variants need to be compiled.
template <int ways, bool momentum, bool decays, bool seldom, bool coin>
INLINE void move_lanes(const Move &m, const Memory &at, const float *chance, U8 low, U8 step,
                       U8 first, U8 second, F8 &counted) {
  if constexpr (!coin) {  // the mean field
    EACH {
      const int here = j * kLanes;
      F8 g = load<F8>(at.grad + here);
      const F8 w = load<F8>(at.weight + here);
      g = (F8)((U8)g ^ m.sign);
      if (m.decays) g = fma(w, all(m.decay), g);
      if (momentum) {
        const F8 rolled = load<F8>(at.buffer + here) * m.momentum + g;
        store(at.buffer + here, rolled);
        g = m.nesterov ? fma(rolled, all(m.momentum), g) : rolled;
      }
      store(at.weight + here, fma(g * (load<F8>(chance + here) * 0x1p-24f), all(m.rate), w));
      counted += 1.0f;
    }
    return;
  }
  U8 draw[ways];
  EACH draw[j] = (low + step * static_cast<uint32_t>(j)) ^ first;
  EACH draw[j] ^= draw[j] >> 17;
  EACH draw[j] = draw[j] * kMultipliers[0] + second;
  EACH draw[j] ^= draw[j] >> 11;
  EACH draw[j] *= kMultipliers[1];
  EACH draw[j] ^= draw[j] >> 15;
  EACH draw[j] *= kMultipliers[2];
  EACH draw[j] ^= draw[j] >> 14;
  EACH {
    const int here = j * kLanes;
    F8 g = load<F8>(at.grad + here);
    const F8 w = load<F8>(at.weight + here), a = load<F8>(at.grad_mean + here);
    const I8 k = load<I8>(at.batches + here);
    const F8 kf = __builtin_convertvector(k, F8);
    const I8 chi = __builtin_convertvector((I8)(draw[j] >> 8), F8) < load<F8>(chance + here);
    if (seldom) g = (F8)((U8)g ^ m.sign);
    if (seldom ? m.decays : decays) g = fma(w, all(m.decay), g);
    const F8 mean = a + (g - a) / kf;
    F8 direction = mean;
    if (momentum) {
      const F8 buffer = load<F8>(at.buffer + here);
      const F8 rolled = buffer * m.momentum + mean;
      direction = seldom && m.nesterov ? fma(rolled, all(m.momentum), mean) : rolled;
      store(at.buffer + here, chi ? rolled : buffer);
    }
    if (seldom && m.linear) direction *= kf;
    store(at.weight + here, chi ? fma(direction, all(m.rate), w) : w);
    store(at.grad_mean + here, (F8)((I8)mean & ~chi));
    const I8 rest = k & ~chi;
    store(at.batches + here, rest - (rest < kMostBatches));  // true is -1
    counted += kf;
  }
}

inline Memory advance(const Memory &m, int64_t n) {
  const auto on = [n](auto *p) { return p ? p + n : nullptr; };
  return {m.weight + n, m.grad + n, on(m.grad_mean), on(m.batches), on(m.buffer), nullptr};
}
void copy(const Memory &to, const Memory &from, int64_t n) {
  std::memcpy(to.weight, from.weight, n * sizeof(float));
  if (to.grad_mean && from.grad_mean) {
    std::memcpy(to.grad_mean, from.grad_mean, n * sizeof(float));
    std::memcpy(to.batches, from.batches, n * sizeof(int32_t));
  }
  if (to.buffer && from.buffer) std::memcpy(to.buffer, from.buffer, n * sizeof(float));
}

struct Seen {
  double chances, batches;
};

// Move n <= kRun scalars, whose indices have the low words low, low + stride, ...
template <bool momentum, bool decays, bool seldom, bool coin>
Seen move_run(const Move &move, const Memory &at, int64_t n, uint32_t low, uint32_t stride,
              uint32_t first, uint32_t second) {
  constexpr int wide = seldom ? 1 : 4;
  const Move m = move;  // a copy that no store can alias
  const U8 one = U8{} + first, two = U8{} + second, step = U8{} + stride * kLanes;
  U8 index = U8{0, 1, 2, 3, 4, 5, 6, 7} * stride + low;
  alignas(32) float chance[kRun];
  F8 chances = {}, counted = {};
  int64_t i = 0;
  if (m.adaptive) {
    for (; i + 8 * kLanes <= n; i += 8 * kLanes)
      find_chances<8>(m, at.grad + i, chance + i, chances);
    for (; i + kLanes <= n; i += kLanes) find_chances<1>(m, at.grad + i, chance + i, chances);
  } else {
    std::fill_n(chance, n, m.chance);
  }
  const auto go = [&](auto ways, const Memory &here, const float *own, F8 &sum) __attribute__((always_inline)) {
    move_lanes<ways(), momentum, decays, seldom, coin>(m, here, own, index, step, one, two, sum);
    index += step * static_cast<uint32_t>(ways());
  };
  constexpr std::integral_constant<int, wide> many;
  constexpr std::integral_constant<int, 1> single;
  for (i = 0; i + wide * kLanes <= n; i += wide * kLanes) {
    for (int64_t line = i + kAhead; line < i + kAhead + wide * kLanes; line += 16) {
      __builtin_prefetch(at.weight + line);
      __builtin_prefetch(at.grad + line);
      if (coin) __builtin_prefetch(at.grad_mean + line);
      if (coin) __builtin_prefetch(at.batches + line);
      if (momentum) __builtin_prefetch(at.buffer + line);
    }
    go(many, advance(at, i), chance + i, counted);
  }
  for (; i + kLanes <= n; i += kLanes) go(single, advance(at, i), chance + i, counted);
  if (i < n) {  // fewer than 8 are left: move a copy that has 8
    float weight[kLanes] = {}, grad[kLanes] = {}, grad_mean[kLanes] = {}, buffer[kLanes] = {};
    int32_t batches[kLanes] = {1, 1, 1, 1, 1, 1, 1, 1};
    const Memory rest = advance(at, i);
    const Memory padded = {weight, grad, grad_mean, batches, buffer, nullptr};
    float own[kLanes];
    F8 last = {}, count = {};
    copy(padded, rest, n - i);
    std::memcpy(grad, rest.grad, (n - i) * sizeof(float));
    store(own, all(m.chance));
    if (m.adaptive) find_chances<1>(m, grad, own, last);
    go(single, padded, own, count);
    copy(rest, padded, n - i);
    for (int lane = 0; lane < n - i; ++lane) {
      chances[lane] += last[lane];
      counted[lane] += count[lane];
    }
  }
  Seen seen = {0, 0};
  for (int lane = 0; lane < kLanes; ++lane) {
    seen.chances += 0x1p-24 * chances[lane];
    seen.batches += counted[lane];
  }
  return seen;
}

using Run = Seen (*)(const Move &, const Memory &, int64_t, uint32_t, uint32_t, uint32_t, uint32_t);

template <bool momentum>
Run choose(const Move &m, bool coin) {
  if (!coin) return move_run<momentum, false, true, false>;
  if (m.linear || m.nesterov || m.sign) return move_run<momentum, false, true, true>;
  return m.decays ? move_run<momentum, true, false, true> : move_run<momentum, false, false, true>;
}

// ---- The step ----

struct Chunk {
  int64_t layer, start, length;
};

// Only the bare parallel region is asked of the OpenMP library (torch's own, already loaded
// under the same name): chunks are handed out by an atomic counter.
template <typename Body>
void share_out(int64_t count, int threads, const Body &body) {
  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(threads) if (threads > 1 && count > 1)
  for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(i);
}

struct Moments {
  double mean, std;
};

// The layers' standardised scores among their peers (Eq. 19), times lambda. A layer whose gradient
// is zero everywhere takes no part in the comparison.
std::vector<double> shifts(const std::vector<Moments> &moments, const Facts *facts,
                           const Options *options) {
  const size_t count = moments.size();
  int64_t classes = 0;
  for (size_t l = 0; l < count; ++l) classes = std::max(classes, facts[l].peers + 1);
  const auto score = [&](size_t l, int reading) {
    return reading == 0 ? moments[l].mean * static_cast<double>(facts[l].whole) : moments[l].mean;
  };
  const auto share = [&](size_t l, int reading) {
    if (moments[l].mean == 0) return 0.0;
    return reading == 2 ? static_cast<double>(facts[l].whole) : 1.0;
  };
  std::vector<double> result(count, 0.0);
  for (int r = 0; r < kReadings; ++r) {
    std::vector<double> mean(classes, 0.0), weight(classes, 0.0), variance(classes, 0.0);
    for (size_t l = 0; l < count; ++l) {
      weight[facts[l].peers] += share(l, r);
      mean[facts[l].peers] += share(l, r) * score(l, r);
    }
    for (int64_t c = 0; c < classes; ++c) mean[c] /= weight[c];
    for (size_t l = 0; l < count; ++l) {
      const double deviation = score(l, r) - mean[facts[l].peers];
      if (moments[l].mean != 0) variance[facts[l].peers] += share(l, r) * deviation * deviation;
    }
    for (size_t l = 0; l < count; ++l) {
      const Options &o = options[facts[l].group];
      if (static_cast<int>(o.reading) != r || moments[l].mean == 0) continue;
      const int64_t c = facts[l].peers;
      const double std = std::sqrt(variance[c] / weight[c]);
      const bool flat = std <= kZeroSpread * mean[c];
      result[l] = o.lambd * (flat ? 0.0 : (score(l, r) - mean[c]) / std);
    }
  }
  return result;
}

std::vector<Chunk> divide(int64_t count, const Facts *facts) {
  std::vector<Chunk> chunks;
  for (int64_t l = 0; l < count; ++l)
    for (int64_t start = 0; start < facts[l].size; start += kChunk)
      chunks.push_back({l, start, std::min(kChunk, facts[l].size - start)});
  return chunks;
}

// Sum and squared deviations of what is here of each layer.
std::vector<Sums> add_up(int64_t count, const Memory *memory, const Facts *facts,
                         const std::vector<Chunk> &chunks, int threads) {
  const int64_t pieces = static_cast<int64_t>(chunks.size());
  std::vector<Sums> sums(chunks.size()), layers(count, {0, 0});
  share_out(pieces, threads, [&](int64_t i) {
    sums[i] = measure(memory[chunks[i].layer].grad + chunks[i].start, chunks[i].length);
  });
  for (int64_t i = 0; i < pieces; ++i) layers[chunks[i].layer].total += sums[i].total;
  for (int64_t i = 0; i < pieces; ++i) {  // Chan, Golub, LeVeque 1979
    const int64_t l = chunks[i].layer;
    const double n = static_cast<double>(chunks[i].length);
    const double apart = sums[i].total / n - layers[l].total / static_cast<double>(facts[l].size);
    layers[l].squares += sums[i].squares + n * apart * apart;
  }
  return layers;
}

}  // namespace

// Write sum and squared deviations of |g| of what is here of each layer.
extern "C" void sbs_measure(int64_t count, const Memory *memory, const Facts *facts, int threads,
                            double *result) {
  const std::vector<Sums> sums = add_up(count, memory, facts, divide(count, facts), threads);
  std::memcpy(result, sums.data(), sums.size() * sizeof(Sums));
}

// Take one step; return whether it counts. For layers that are parts of tensors: `known` has sum and
// squared deviations of the whole ones, and `seen_here`, which receives the sums of
// probabilities and batches, is written instead of the tallies.
extern "C" int sbs_step(int64_t count, const Memory *memory, const Facts *facts,
                        const Options *options, uint64_t seed, int64_t *step, int64_t *skipped,
                        int skip_nonfinite, int threads, const Sums *known, Seen *seen_here) {
  const std::vector<Chunk> chunks = divide(count, facts);
  const int64_t pieces = static_cast<int64_t>(chunks.size());
  const std::vector<Sums> sums = known ? std::vector<Sums>(known, known + count)
                                       : add_up(count, memory, facts, chunks, threads);
  std::vector<Moments> moments(count);
  bool finite = true, still = true;
  for (int64_t l = 0; l < count; ++l) {
    const double whole = static_cast<double>(facts[l].whole);
    moments[l] = {sums[l].total / whole, std::sqrt(sums[l].squares / whole)};
    finite &= std::isfinite(moments[l].mean);
    still &= moments[l].mean == 0 && options[facts[l].group].lr == 0;
  }

  const bool bad = skip_nonfinite && !finite;
  *skipped += bad;
  if (bad || still) return 0;  // nothing moves when the step does not count
  const uint64_t now = static_cast<uint64_t>(*step);
  *step += 1;

  const std::vector<double> shift = shifts(moments, facts, options);
  constexpr double largest = std::numeric_limits<float>::max();
  std::vector<Move> moves(count);
  std::vector<Run> runs(count);
  for (int64_t l = 0; l < count; ++l) {
    const Options &o = options[facts[l].group];
    const bool flat = moments[l].std <= kZeroSpread * moments[l].mean;
    double slope = (flat ? 0.0 : o.alpha / moments[l].std) * kBitsPerNat;
    slope = slope < -largest ? -largest : slope > largest ? largest : slope;
    Move &m = moves[l];
    m.centre = static_cast<float>(moments[l].mean);
    m.slope = -static_cast<float>(slope);
    m.shift = -static_cast<float>(shift[l] * kBitsPerNat);
    m.chance = 0x1p24f * static_cast<float>(o.probability);
    m.rate = -static_cast<float>(o.lr);
    m.momentum = static_cast<float>(o.momentum);
    m.decay = static_cast<float>(o.weight_decay);
    m.sign = o.maximize != 0 ? 0x80000000u : 0u;
    m.adaptive = o.probability < 0;
    m.linear = o.linear != 0;
    m.nesterov = o.nesterov != 0;
    m.decays = o.weight_decay != 0;
    const bool coin = memory[l].batches;
    runs[l] = memory[l].buffer ? choose<true>(m, coin) : choose<false>(m, coin);
  }

  std::vector<Seen> seen(chunks.size());
  share_out(pieces, threads, [&](int64_t i) {
    const Chunk &c = chunks[i];
    const Facts &f = facts[c.layer];
    Seen all = {0, 0};
    uint64_t block = ~0ull;
    uint32_t first = 0, second = 0;
    for (int64_t at = c.start, n; at < c.start + c.length; at += n) {
      const int64_t row = at / f.inner, outer = row / f.middle;
      const uint64_t index =
          f.offset + outer * f.pitch + at % f.inner * f.middle + row % f.middle;
      // Up to the end of the row, of the chunk and of the block of coins.
      const int64_t in_block = (((~index & 0xFFFFFFFFu) / f.middle) + 1);
      n = std::min({kRun, (row + 1) * f.inner - at, c.start + c.length - at, in_block});
      if (index >> 32 != block) {
        block = index >> 32;
        first = key(0x243F6A88u, seed, f.index, block, now);
        second = key(0x13198A2Eu, seed, f.index, block, now);
      }
      const Seen part = runs[c.layer](moves[c.layer], advance(memory[c.layer], at), n,
                                      static_cast<uint32_t>(index),
                                      static_cast<uint32_t>(f.middle), first, second);
      all.chances += part.chances;
      all.batches += part.batches;
    }
    seen[i] = all;
  });

  std::vector<Seen> totals(count, {0, 0});
  for (int64_t i = 0; i < pieces; ++i) {
    totals[chunks[i].layer].chances += seen[i].chances;
    totals[chunks[i].layer].batches += seen[i].batches;
  }
  if (seen_here) std::copy(totals.begin(), totals.end(), seen_here);
  for (int64_t l = 0; l < count && !seen_here; ++l) {
    const double n = static_cast<double>(facts[l].size);
    const double fixed = options[facts[l].group].probability;
    float *tally = memory[l].tally;
    tally[0] += 1.0f;
    const float chance = static_cast<float>(fixed < 0 ? totals[l].chances / n : fixed);
    tally[1] += (chance - tally[1]) / tally[0];
    tally[2] += (static_cast<float>(totals[l].batches / n) - tally[2]) / tally[0];
  }
  return 1;
}
