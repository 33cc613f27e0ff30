// One SBS step over layers on the CPU: statistics, scores, update, tally.
//
// Plain C interface, no torch headers: it builds in seconds and depends on no ABI but C's.
// The update is bit-identical to the eager step (of doubles only with a coin: their probabilities
// may differ in the last place, as the order of a sum shows there). What that takes:
//   * -ffp-contract=off: the compiler may not fuse; fma stands exactly where torch's
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
#include <type_traits>
#include <vector>
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define AVX2 1
#include <immintrin.h>
#else
#define AVX2 0
#endif
#if AVX2 && defined(__AVX512F__) && defined(__AVX512VL__)
#define AVX512 1
#else
#define AVX512 0
#endif

namespace {

constexpr int64_t kChunk = 1 << 15;  // what is summed up for itself
constexpr int64_t kChunks = 16;      // what a thread takes at a time, of many
constexpr int64_t kRun = 1 << 9;     // elements whose chances wait in the first-level cache
constexpr int kReadings = 3;
constexpr double kBitsPerNat = 1.4426950408889634;
constexpr int kMostBatches = std::numeric_limits<int16_t>::max();

// ---- What Python passes; every field is 8 bytes so that array('q') / array('d') are these. ----

enum Dtype : int64_t { kFloat32, kFloat64, kBfloat16, kFloat16 };  // of weights and gradients
struct Memory {                                                    // changes from step to step
  char *weight;
  const char *grad;
  char *grad_mean;   // float64 for a float64 weight, else float32; null in the mean field
  char *batches;     // int16 or, in shards, int32; null in the mean field
  char *buffer;      // like grad_mean; null without momentum
  float *tally;      // steps, mean probability, mean batches
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
  int64_t wide;   // whether counts are int32
  Dtype weight, grad;
};
struct Options {  // of a parameter group
  double lr, alpha, lambd, probability /* negative: adaptive */, momentum, weight_decay;
  double reading /* total, mean, weighted */, linear, nesterov, maximize;
};

// ---- Vectors ----

#define INLINE __attribute__((always_inline)) inline
#define INLINE_LAMBDA __attribute__((always_inline))

// Written with the vector types of GCC and Clang and not as loops for the compiler to vectorise:
// GCC turns "w = drawn ? moved : w" into masked stores, on which AMD processors spend a third of
// the time.
constexpr int kBytes = AVX512 ? 64 : 32;
#define VECTOR(bytes, type) __attribute__((vector_size(bytes))) type
template <typename Real>
struct Lanes {
  static constexpr int count = kBytes / sizeof(Real);
  using Int = std::conditional_t<std::is_same<Real, double>::value, int64_t, int32_t>;
  typedef VECTOR(kBytes, Real) Reals;
  typedef VECTOR(kBytes, Int) Masks;
  typedef VECTOR(kBytes, std::make_unsigned_t<Int>) Bits;
  typedef VECTOR(count * sizeof(uint32_t), uint32_t) Words;
  typedef VECTOR(count * sizeof(int32_t), int32_t) Ints;
  typedef VECTOR(count * sizeof(int16_t), int16_t) Shorts;
};
typedef Lanes<float>::Reals Floats;
typedef Lanes<double>::Reals Doubles;
typedef VECTOR(kBytes / 2, float) HalfFloats;  // as many as Doubles
typedef VECTOR(kBytes / 2, uint16_t) Halves;
typedef Lanes<float>::Ints Ints;
typedef Lanes<float>::Shorts Shorts;

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
inline Doubles widen(Doubles x) { return x; }
inline Floats abs(Floats x) { return (Floats)((Lanes<float>::Bits)x & 0x7FFFFFFFu); }
inline Doubles abs(Doubles x) { return (Doubles)((Lanes<double>::Bits)x & (~0ull >> 1)); }

// GCC's own conversions of vectors take up to 3 times as long.
#if AVX512
inline Doubles widen(HalfFloats x) { return (Doubles)_mm512_cvtps_pd((__m256)x); }
inline Ints widen(Shorts x) {
  return (Ints)_mm512_cvtepi16_epi32((__m256i)x);
}
inline Shorts narrow(Ints x) {
  return (Shorts)_mm512_cvtepi32_epi16((__m512i)x);
}
inline Floats from_half(Halves x) { return (Floats)_mm512_cvtph_ps((__m256i)x); }
inline Halves to_half(Floats x) { return (Halves)_mm512_cvtps_ph((__m512)x, 0); }
// Of max and min the second operand is the result when either is a NaN.
#define FMA(V, T, S)                                                                              \
  inline V fma(V x, V y, V z) { return (V)_mm512_fmadd_##S((T)x, (T)y, (T)z); }                   \
  inline V max(V x, V y) { return (V)_mm512_max_##S((T)x, (T)y); }                                \
  inline V min(V x, V y) { return (V)_mm512_min_##S((T)x, (T)y); }
FMA(Floats, __m512, ps)
FMA(Doubles, __m512d, pd)
#elif AVX2
inline Doubles widen(HalfFloats x) { return (Doubles)_mm256_cvtps_pd((__m128)x); }
inline Ints widen(Shorts x) {
  return (Ints)_mm256_cvtepi16_epi32((__m128i)x);
}
inline Shorts narrow(Ints x) {
  const __m256i y = (__m256i)x;
  return (Shorts)_mm_packs_epi32(_mm256_castsi256_si128(y),
                                               _mm256_extracti128_si256(y, 1));
}
inline Floats from_half(Halves x) { return (Floats)_mm256_cvtph_ps((__m128i)x); }
inline Halves to_half(Floats x) { return (Halves)_mm256_cvtps_ph((__m256)x, 0); }
#define FMA(V, T, S)                                                                              \
  inline V fma(V x, V y, V z) { return (V)_mm256_fmadd_##S((T)x, (T)y, (T)z); }                   \
  inline V max(V x, V y) { return (V)_mm256_max_##S((T)x, (T)y); }                                \
  inline V min(V x, V y) { return (V)_mm256_min_##S((T)x, (T)y); }
FMA(Floats, __m256, ps)
FMA(Doubles, __m256d, pd)
#else
inline Doubles widen(HalfFloats x) { return __builtin_convertvector(x, Doubles); }
inline Ints widen(Shorts x) {
  return __builtin_convertvector(x, Ints);
}
inline Shorts narrow(Ints x) {
  return __builtin_convertvector(x, Shorts);
}
inline Floats from_half(Halves x) {
  Floats result;
  for (int i = 0; i < Lanes<float>::count; ++i) {
    _Float16 half;
    const uint16_t bits = x[i];
    std::memcpy(&half, &bits, sizeof half);
    result[i] = static_cast<float>(half);
  }
  return result;
}
inline Halves to_half(Floats x) {
  Halves result;
  for (int i = 0; i < Lanes<float>::count; ++i) {
    const _Float16 half = static_cast<_Float16>(x[i]);
    uint16_t bits;
    std::memcpy(&bits, &half, sizeof bits);
    result[i] = bits;
  }
  return result;
}
template <typename V>
inline V fma(V x, V y, V z) {
  for (size_t i = 0; i < sizeof x / sizeof x[0]; ++i) z[i] = std::fma(x[i], y[i], z[i]);
  return z;
}
template <typename V>
inline V max(V x, V y) { return x > y ? x : y; }
template <typename V>
inline V min(V x, V y) { return x < y ? x : y; }
#endif

inline Lanes<double>::Ints widen(Lanes<double>::Shorts x) {
  return __builtin_convertvector(x, Lanes<double>::Ints);
}
inline Lanes<double>::Shorts narrow(Lanes<double>::Ints x) {
  return __builtin_convertvector(x, Lanes<double>::Shorts);
}

// ---- Half precision: computed in float, in buffers that stay in the first-level cache ----

inline Floats from_bfloat(Halves x) {
  return (Floats)((Lanes<float>::Bits)widen((Shorts)x) << 16);
}
inline Halves to_bfloat(Floats x) {
  typedef Lanes<float>::Bits Bits;
  const Bits bits = (Bits)x, rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
  // An arithmetic shift: what is narrowed fits into 16 bits with a sign.
  return (Halves)narrow((Ints)(x == x ? rounded : Bits{} + 0x7FC00000u) >> 16);
}

// Convert n numbers, vector by vector; the last one is padded.
template <typename From, typename To, typename Convert>
INLINE void convert_all(To *to, const From *from, int64_t n, const Convert &convert) {
  constexpr int64_t lanes = Lanes<float>::count;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) convert(to + i, from + i);
  if (i == n) return;
  From some[lanes] = {};
  To converted[lanes];
  std::copy_n(from + i, n - i, some);
  convert(converted, some);
  std::copy_n(converted, n - i, to + i);
}
void widen_all(int32_t *to, const int16_t *from, int64_t n) {
  convert_all(to, from, n, [](int32_t *t, const int16_t *f)
                               INLINE_LAMBDA { store(t, widen(load<Shorts>(f))); });
}
void narrow_all(int16_t *to, const int32_t *from, int64_t n) {
  convert_all(to, from, n, [](int16_t *t, const int32_t *f)
                               INLINE_LAMBDA { store(t, narrow(load<Ints>(f))); });
}
void widen_all(float *to, const uint16_t *from, Dtype dtype, int64_t n) {
  if (dtype == kBfloat16)
    convert_all(to, from, n, [](float *t, const uint16_t *f)
                                 INLINE_LAMBDA { store(t, from_bfloat(load<Halves>(f))); });
  else
    convert_all(to, from, n, [](float *t, const uint16_t *f)
                                 INLINE_LAMBDA { store(t, from_half(load<Halves>(f))); });
}
void narrow_all(uint16_t *to, const float *from, Dtype dtype, int64_t n) {
  if (dtype == kBfloat16)
    convert_all(to, from, n, [](uint16_t *t, const float *f)
                                 INLINE_LAMBDA { store(t, to_bfloat(load<Floats>(f))); });
  else
    convert_all(to, from, n, [](uint16_t *t, const float *f)
                                 INLINE_LAMBDA { store(t, to_half(load<Floats>(f))); });
}
// The standard deviation relative to the mean below which there is no spread, only rounding.
constexpr double tolerance(Dtype weight) { return weight == kFloat64 ? 1e-12 : 1e-6; }
constexpr bool is_half(Dtype dtype) { return dtype == kBfloat16 || dtype == kFloat16; }
constexpr int64_t bytes_of(Dtype dtype) {
  return dtype == kFloat64 ? sizeof(double) : is_half(dtype) ? sizeof(uint16_t) : sizeof(float);
}

// ---- Coins ----

constexpr uint32_t kMultipliers[] = {0xED5AD4BBu, 0xAC4C1B51u, 0x31848BABu};

uint32_t mix(uint32_t word) {
  word = (word ^ word >> 17) * kMultipliers[0];
  word = (word ^ word >> 11) * kMultipliers[1];
  word = (word ^ word >> 15) * kMultipliers[2];
  return word ^ word >> 14;
}

uint32_t key(uint32_t chain, uint64_t seed, uint64_t index, uint64_t step) {
  for (uint64_t word : {seed, seed >> 32, index, uint64_t{0}, step, step >> 32})
    chain = mix(chain ^ static_cast<uint32_t>(word));
  return chain;
}

// ---- Statistics ----

struct Sums {
  double total, squares;  // sum of |g|; sum of its squared deviations from the mean
};

// Sums of |g| - from and of its squares.
class Sweep {
 public:
  explicit Sweep(double from) : from_(from) {}

  template <typename Real>
  void add(const Real *grad, int64_t n) {
    typedef std::conditional_t<std::is_same<Real, double>::value, Doubles, HalfFloats> Vector;
    constexpr int step = Lanes<double>::count;
    int64_t i = 0;
    for (; i + kWays * step <= n; i += kWays * step) {
#pragma GCC unroll 4
      for (int way = 0; way < kWays; ++way) {
        const Doubles d = abs(widen(load<Vector>(grad + i + way * step))) - from_;
        sum_[way] += d;
        square_[way] = fma(d, d, square_[way]);
      }
    }
    for (; i < n; ++i) {
      const double d = std::fabs(static_cast<double>(load<Real>(grad + i))) - from_;
      rest_.total += d;
      rest_.squares += d * d;
    }
  }

  Sums sums() const {
    Sums all = rest_;
    for (int way = 0; way < kWays; ++way)
      for (int lane = 0; lane < Lanes<double>::count; ++lane) {
        all.total += sum_[way][lane];
        all.squares += square_[way][lane];
      }
    return all;
  }

 private:
  static constexpr int kWays = 4;  // independent sums: an addition takes 3 or 4 cycles
  const double from_;
  Doubles sum_[kWays] = {}, square_[kWays] = {};
  Sums rest_ = {0, 0};
};

Sums sweep(const char *grad, Dtype dtype, int64_t n, double from) {
  Sweep sweep(from);
  if (dtype == kFloat32) sweep.add(reinterpret_cast<const float *>(grad), n);
  if (dtype == kFloat64) sweep.add(reinterpret_cast<const double *>(grad), n);
  for (int64_t at = 0, some; is_half(dtype) && at < n; at += some) {
    some = std::min(kRun, n - at);
    alignas(64) float wide[kRun];
    widen_all(wide, reinterpret_cast<const uint16_t *>(grad) + at, dtype, some);
    sweep.add(wide, some);
  }
  return sweep.sums();
}

Sums measure(const char *grad, Dtype dtype, int64_t n) {
  const Sums sums = sweep(grad, dtype, n, 0.0);
  const double count = static_cast<double>(n);
  const double squares = sums.squares - sums.total * sums.total / count;
  // One sweep is enough unless most of the digits cancel.
  if (squares > 1e-3 * sums.squares) return {sums.total, squares};
  return {sums.total, sweep(grad, dtype, n, sums.total / count).squares};
}

// ---- Update ----

struct Scores {  // of a layer: mu of Eq. 17; alpha / sigma and lambda t of Eq. 21, in bits
  double centre, slope, shift;
};
template <typename Real>
struct Move {                  // constants of a layer in a step
  Real centre, slope, shift;   // slope and shift negated: the sigmoid wants the negative
  Real chance;                 // 2**24 times the fixed probability
  Real rate, momentum, decay;  // rate negated
  typename Lanes<Real>::Bits sign;  // the sign bits, if ascending
  bool adaptive, linear, nesterov, decays;
  static constexpr double kLargest = std::numeric_limits<Real>::max();

  Move(const Options &o, const Scores &s)
      : centre(static_cast<Real>(s.centre)),
        slope(-static_cast<Real>(std::max(-kLargest, std::min(kLargest, s.slope)))),
        shift(-static_cast<Real>(s.shift)),
        chance(static_cast<Real>(0x1p24) * static_cast<Real>(o.probability)),
        rate(-static_cast<Real>(o.lr)),
        momentum(static_cast<Real>(o.momentum)),
        decay(static_cast<Real>(o.weight_decay)),
        sign((typename Lanes<Real>::Bits)(o.maximize != 0 ? -typename Lanes<Real>::Reals{}
                                                          : typename Lanes<Real>::Reals{})),
        adaptive(o.probability < 0),
        linear(o.linear != 0),
        nesterov(o.nesterov != 0),
        decays(o.weight_decay != 0) {}
};
template <typename Real>
struct Place {  // where scalars lie
  Real *weight;
  const Real *grad;
  Real *grad_mean;
  int16_t *batches;
  Real *buffer;

  Place operator+(int64_t n) const {
    const auto on = [n](auto *p) { return p ? p + n : nullptr; };
    return {weight + n, grad + n, on(grad_mean), on(batches), on(buffer)};
  }
};

// The next functions work on several vectors side by side, operation by operation: one vector
// alone is a chain of 30 dependent operations that fills the processor's window with
// waiting instructions. (-fschedule-insns keeps GCC from undoing that.)
#define EACH _Pragma("GCC unroll 8") for (int j = 0; j < ways; ++j)

// Of 2**f for |f| <= 1/2, halved. Adding `magic` rounds to an integer, half to even, and leaves it
// in the low bits; what else is added makes of them the exponent field of 2**(whole + 1).
template <typename Real>
struct Power {};
template <>
struct Power<float> {
  static constexpr float magic = 12582912.0f + 128.0f;
  static constexpr int mantissa = 23;
  static constexpr float coefficients[] = {0.5f * 0.001326472731307149f,
                                           0.5f * 0.009671512991189957f,
                                           0.5f * 0.05550733581185341f, 0.5f * 0.24022242426872253f,
                                           0.5f * 0.6931470036506653f};
};
template <>
struct Power<double> {
  static constexpr double magic = 6755399441055744.0 + 1024.0;
  static constexpr int mantissa = 52;
  static constexpr double coefficients[] = {
      0.5 * 0x1.816193166d0f7p-40, 0.5 * 0x1.c3bd650fc2983p-36, 0.5 * 0x1.e8cac7351bb22p-32,
      0.5 * 0x1.e4cf5158b8ec7p-28, 0.5 * 0x1.b5253d395e7c1p-24, 0.5 * 0x1.62c0223a5c822p-20,
      0.5 * 0x1.ffcbfc588b0c5p-17, 0.5 * 0x1.430912f86c786p-13, 0.5 * 0x1.5d87fe78a6730p-10,
      0.5 * 0x1.3b2ab6fba4e77p-7,  0.5 * 0x1.c6b08d704a0bfp-5,  0.5 * 0x1.ebfbdff82c58ep-3,
      0.5 * 0x1.62e42fefa39efp-1};
};

// Write 2**24 / (1 + 2**bits): the operations of the eager step, scaled by exact powers of two,
// so that a 24-bit integer can be compared with it.
template <int ways, typename Real>
INLINE void find_chances(const Move<Real> &m, const Real *grad, Real *chance,
                         typename Lanes<Real>::Reals &sum) {
  typedef typename Lanes<Real>::Reals Reals;
  typedef typename Lanes<Real>::Bits Bits;
  constexpr int lanes = Lanes<Real>::count;
  Reals bits[ways], rounded[ways], power[ways];
  EACH bits[j] = abs(load<Reals>(grad + j * lanes)) - m.centre;
  EACH bits[j] = bits[j] * m.slope;
  EACH bits[j] = bits[j] + m.shift;
  EACH bits[j] = max(Reals{} - Real(126), bits[j]);
  EACH bits[j] = min(Reals{} + Real(126), bits[j]);
  EACH rounded[j] = bits[j] + Power<Real>::magic;
  EACH power[j] = rounded[j] - Power<Real>::magic;
  EACH bits[j] = bits[j] - power[j];
  constexpr auto &coefficients = Power<Real>::coefficients;
  EACH power[j] = bits[j] * coefficients[0];
#pragma GCC unroll 16
  for (size_t n = 1; n < sizeof coefficients / sizeof(Real); ++n) {
    EACH power[j] = power[j] + coefficients[n];
    EACH power[j] = power[j] * bits[j];
  }
  EACH power[j] = power[j] + Real(0.5);
  EACH power[j] = power[j] * (Reals)((Bits)rounded[j] << Power<Real>::mantissa);
  EACH power[j] = power[j] + Real(1);
  EACH power[j] = Real(0x1p24) / power[j];
  EACH store(chance + j * lanes, power[j]);
  EACH sum += power[j];
}

// Move the scalars at `at`, whose indices have the low words `low`, `low + step`, ...
// Seldom used options are looked up as we go, so that few variants need to be compiled.
template <int ways, bool momentum, bool decays, bool seldom, bool coin, typename Real>
INLINE void move_lanes(const Move<Real> &m, const Place<Real> &at, const Real *chance,
                       typename Lanes<Real>::Words low, typename Lanes<Real>::Words step,
                       typename Lanes<Real>::Words first, typename Lanes<Real>::Words second,
                       typename Lanes<Real>::Reals &counted) {
  typedef typename Lanes<Real>::Reals Reals;
  typedef typename Lanes<Real>::Bits Bits;
  typedef typename Lanes<Real>::Masks Masks;
  typedef typename Lanes<Real>::Ints Ints;
  typedef typename Lanes<Real>::Shorts Shorts;
  constexpr int lanes = Lanes<Real>::count;
  if constexpr (!coin) {  // the mean field
    EACH {
      const int here = j * lanes;
      Reals g = load<Reals>(at.grad + here);
      const Reals w = load<Reals>(at.weight + here);
      g = (Reals)((Bits)g ^ m.sign);
      if (m.decays) g = fma(w, Reals{} + m.decay, g);
      if (momentum) {
        const Reals rolled = load<Reals>(at.buffer + here) * m.momentum + g;
        store(at.buffer + here, rolled);
        g = m.nesterov ? fma(rolled, Reals{} + m.momentum, g) : rolled;
      }
      const Reals p = load<Reals>(chance + here) * Real(0x1p-24);
      store(at.weight + here, fma(g * p, Reals{} + m.rate, w));
      counted += Real(1);
    }
    return;
  }
  typename Lanes<Real>::Words draw[ways];
  EACH draw[j] = (low + step * static_cast<uint32_t>(j)) ^ first;
  EACH draw[j] ^= draw[j] >> 17;
  EACH draw[j] = draw[j] * kMultipliers[0] + second;
  EACH draw[j] ^= draw[j] >> 11;
  EACH draw[j] *= kMultipliers[1];
  EACH draw[j] ^= draw[j] >> 15;
  EACH draw[j] *= kMultipliers[2];
  EACH draw[j] ^= draw[j] >> 14;
  EACH {
    const int here = j * lanes;
    Reals g = load<Reals>(at.grad + here);
    const Reals w = load<Reals>(at.weight + here), a = load<Reals>(at.grad_mean + here);
    const Ints k = widen(load<Shorts>(at.batches + here));
    const Reals kf = __builtin_convertvector(k, Reals);
    const Masks chi = __builtin_convertvector((Ints)(draw[j] >> 8), Reals) <
                      load<Reals>(chance + here);
    if (seldom) g = (Reals)((Bits)g ^ m.sign);
    if (seldom ? m.decays : decays) g = fma(w, Reals{} + m.decay, g);
    const Reals mean = a + (g - a) / kf;
    Reals direction = mean;
    if (momentum) {
      const Reals buffer = load<Reals>(at.buffer + here);
      const Reals rolled = buffer * m.momentum + mean;
      direction = seldom && m.nesterov ? fma(rolled, Reals{} + m.momentum, mean) : rolled;
      store(at.buffer + here, chi ? rolled : buffer);
    }
    if (seldom && m.linear) direction *= kf;
    store(at.weight + here, chi ? fma(direction, Reals{} + m.rate, w) : w);
    store(at.grad_mean + here, (Reals)((Masks)mean & ~chi));
    const Ints rest = k & ~__builtin_convertvector(chi, Ints);
    store(at.batches + here, narrow(rest - (rest < kMostBatches)));  // true is -1
    counted += kf;
  }
}

struct Seen {
  double chances, batches;
};
struct Stream {  // the coins of a run of scalars, whose indices have the low words low, low + stride, ...
  uint32_t low, stride, first, second;
};

// Move n <= kRun scalars.
template <bool momentum, bool decays, bool seldom, bool coin, typename Real>
Seen move_run(const Move<Real> &move, const Place<Real> &at, int64_t n, const Stream &stream) {
  typedef typename Lanes<Real>::Reals Reals;
  typedef typename Lanes<Real>::Words Words;
  constexpr int lanes = Lanes<Real>::count, sigmoids = 8;
  constexpr int wide = seldom && std::is_same<Real, float>::value ? 1 : 4;
  const Move<Real> m = move;  // a copy that no store can alias
  const Words one = Words{} + stream.first, two = Words{} + stream.second;
  const Words step = Words{} + stream.stride * lanes;
  Words index;
  for (int lane = 0; lane < lanes; ++lane) index[lane] = lane * stream.stride + stream.low;
  alignas(64) Real chance[kRun];
  Reals chances = {}, counted = {};
  int64_t i = 0;
  if (m.adaptive) {
    for (; i + sigmoids * lanes <= n; i += sigmoids * lanes)
      find_chances<sigmoids>(m, at.grad + i, chance + i, chances);
    for (; i + lanes <= n; i += lanes) find_chances<1>(m, at.grad + i, chance + i, chances);
  } else {
    std::fill_n(chance, n, m.chance);
  }
  const auto go = [&](auto ways, const Place<Real> &here, const Real *own, Reals &sum)
      INLINE_LAMBDA {
    move_lanes<ways(), momentum, decays, seldom, coin>(m, here, own, index, step, one, two, sum);
    index += step * static_cast<uint32_t>(ways());
  };
  constexpr std::integral_constant<int, wide> many;
  constexpr std::integral_constant<int, 1> single;
  for (i = 0; i + wide * lanes <= n; i += wide * lanes) go(many, at + i, chance + i, counted);
  for (; i + lanes <= n; i += lanes) go(single, at + i, chance + i, counted);
  if (i < n) {  // fewer than a vector are left: move a copy that has all lanes
    Real weight[lanes] = {}, grad[lanes] = {}, grad_mean[lanes] = {}, buffer[lanes] = {};
    Real own[lanes];
    int16_t batches[lanes];
    std::fill_n(batches, lanes, int16_t{1});
    std::fill_n(own, lanes, m.chance);
    const Place<Real> rest = at + i, padded = {weight, grad, grad_mean, batches, buffer};
    const auto copy = [&](auto *to, const auto *from) {
      if (to && from) std::copy_n(from, n - i, to);
    };
    copy(weight, rest.weight), copy(grad, rest.grad), copy(grad_mean, rest.grad_mean);
    copy(batches, rest.batches), copy(buffer, rest.buffer);
    Reals last = {}, count = {};
    if (m.adaptive) find_chances<1>(m, grad, own, last);
    go(single, padded, own, count);
    copy(rest.weight, weight), copy(rest.grad_mean, grad_mean);
    copy(rest.batches, batches), copy(rest.buffer, buffer);
    for (int lane = 0; lane < n - i; ++lane) {
      chances[lane] += last[lane];
      counted[lane] += count[lane];
    }
  }
  Seen seen = {0, 0};
  for (int lane = 0; lane < lanes; ++lane) {
    seen.chances += 0x1p-24 * chances[lane];
    seen.batches += counted[lane];
  }
  return seen;
}

template <typename Real>
using Run = Seen (*)(const Move<Real> &, const Place<Real> &, int64_t, const Stream &);

template <bool momentum, typename Real>
Run<Real> choose(const Move<Real> &m, bool coin) {
  if (!coin) return move_run<momentum, false, true, false, Real>;
  // Few train in double precision: one variant is enough for them.
  if (std::is_same<Real, double>::value || m.linear || m.nesterov || m.sign[0])
    return move_run<momentum, false, true, true, Real>;
  return m.decays ? move_run<momentum, true, false, true, Real>
                  : move_run<momentum, false, false, true, Real>;
}

// Moves the scalars of a layer, run by run.
template <typename Real>
class Mover {
 public:
  Mover(const Memory &memory, const Facts &facts, const Options &options, const Scores &scores)
      : memory_(memory),
        facts_(facts),
        move_(options, scores),
        run_(memory.buffer ? choose<true>(move_, memory.batches)
                           : choose<false>(move_, memory.batches)) {}

  // Move the n <= kRun scalars from `at` on, counted in the order of memory.
  Seen operator()(int64_t at, int64_t n, const Stream &stream) const {
    const auto place = [at](char *start) {
      return start ? reinterpret_cast<Real *>(start) + at : nullptr;
    };
    alignas(64) float wide_weight[kRun], wide_grad[kRun];
    char *weight = memory_.weight + at * bytes_of(facts_.weight);
    const char *grad = memory_.grad + at * bytes_of(facts_.grad);
    Place<Real> here = {reinterpret_cast<Real *>(weight), reinterpret_cast<const Real *>(grad),
                        place(memory_.grad_mean), nullptr, place(memory_.buffer)};
    alignas(64) int16_t narrow_batches[kRun];
    int32_t *wide_batches = nullptr;
    if (memory_.batches && facts_.wide) {
      wide_batches = reinterpret_cast<int32_t *>(memory_.batches) + at;
      narrow_all(narrow_batches, wide_batches, n);
      here.batches = narrow_batches;
    } else if (memory_.batches) {
      here.batches = reinterpret_cast<int16_t *>(memory_.batches) + at;
    }
    if constexpr (std::is_same<Real, float>::value) {
      if (is_half(facts_.grad)) {
        widen_all(wide_grad, reinterpret_cast<const uint16_t *>(grad), facts_.grad, n);
        here.grad = wide_grad;
      }
      if (is_half(facts_.weight)) {
        widen_all(wide_weight, reinterpret_cast<uint16_t *>(weight), facts_.weight, n);
        here.weight = wide_weight;
      }
    }
    const Seen seen = run_(move_, here, n, stream);
    if (wide_batches) widen_all(wide_batches, narrow_batches, n);
    if (is_half(facts_.weight))
      narrow_all(reinterpret_cast<uint16_t *>(weight), wide_weight, facts_.weight, n);
    return seen;
  }

 private:
  const Memory &memory_;
  const Facts &facts_;
  const Move<Real> move_;
  const Run<Real> run_;
};

// ---- The step ----

struct Chunk {
  int64_t layer, start, length;
};

// Only the bare parallel region is asked of the OpenMP library (torch's own, already loaded
// under the same name): chunks are handed out by an atomic counter, several neighbours at a time, as
// at the end of each stretch the processor has fetched what another thread will write (10 to 25 %
// of a step's time with single chunks).
template <typename Body>
void share_out(int64_t count, int threads, const Body &body) {
  std::atomic<int64_t> next{0};
  const int64_t some = std::max<int64_t>(1, std::min(kChunks, count / (4 * threads)));
#pragma omp parallel num_threads(threads) if (threads > 1 && count > 1)
  for (int64_t i; (i = next.fetch_add(some, std::memory_order_relaxed)) < count;)
    for (const int64_t end = std::min(i + some, count); i < end; ++i) body(i);
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
      const bool flat = std <= tolerance(facts[l].weight) * mean[c];
      result[l] = o.lambd * (flat ? 0.0 : (score(l, r) - mean[c]) / std);
    }
  }
  return result;
}

std::vector<Scores> scores_of(const std::vector<Moments> &moments, const Facts *facts,
                              const Options *options) {
  const std::vector<double> shift = shifts(moments, facts, options);
  std::vector<Scores> scores(moments.size());
  for (size_t l = 0; l < scores.size(); ++l) {
    const Moments &m = moments[l];
    const bool flat = m.std <= tolerance(facts[l].weight) * m.mean;
    const double slope = (flat ? 0.0 : options[facts[l].group].alpha / m.std) * kBitsPerNat;
    scores[l] = {m.mean, slope, shift[l] * kBitsPerNat};
  }
  return scores;
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
    const Chunk &c = chunks[i];
    const Dtype dtype = facts[c.layer].grad;
    sums[i] = measure(memory[c.layer].grad + c.start * bytes_of(dtype), dtype, c.length);
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

// Move all layers; return the sums of their probabilities and of their batches.
std::vector<Seen> move_all(int64_t count, const Memory *memory, const Facts *facts,
                           const Options *options, uint64_t seed, uint64_t step, int threads,
                           const std::vector<Chunk> &chunks, const Scores *scores) {
  std::vector<Mover<float>> movers;
  std::vector<Mover<double>> double_movers;
  std::vector<size_t> number(count);
  for (int64_t l = 0; l < count; ++l) {
    const Options &o = options[facts[l].group];
    if (facts[l].weight == kFloat64) {
      number[l] = double_movers.size();
      double_movers.emplace_back(memory[l], facts[l], o, scores[l]);
    } else {
      number[l] = movers.size();
      movers.emplace_back(memory[l], facts[l], o, scores[l]);
    }
  }
  const int64_t pieces = static_cast<int64_t>(chunks.size());
  std::vector<Seen> seen(chunks.size());
  share_out(pieces, threads, [&](int64_t i) {
    const Chunk &c = chunks[i];
    const Facts &f = facts[c.layer];
    Seen all = {0, 0};
    Stream stream = {0, static_cast<uint32_t>(f.middle), key(0x243F6A88u, seed, f.index, step),
                     key(0x13198A2Eu, seed, f.index, step)};
    for (int64_t at = c.start, n; at < c.start + c.length; at += n) {
      const int64_t row = at / f.inner, outer = row / f.middle;
      const int64_t index = f.offset + outer * f.pitch + at % f.inner * f.middle + row % f.middle;
      // Up to the end of the row and of the chunk.
      n = std::min({kRun, (row + 1) * f.inner - at, c.start + c.length - at});
      stream.low = static_cast<uint32_t>(index);
      const Seen part = f.weight == kFloat64 ? double_movers[number[c.layer]](at, n, stream)
                                             : movers[number[c.layer]](at, n, stream);
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
  return totals;
}

}  // namespace

// Write sum and squared deviations of |g| of what is here of each layer.
extern "C" void sbs_measure(int64_t count, const Memory *memory, const Facts *facts, int threads,
                            double *result) {
  const std::vector<Sums> sums = add_up(count, memory, facts, divide(count, facts), threads);
  std::memcpy(result, sums.data(), sums.size() * sizeof(Sums));
}

// Move layers whose scores are known; write the sums of probabilities and batches.
extern "C" void sbs_move(int64_t count, const Memory *memory, const Facts *facts,
                         const Options *options, uint64_t seed, const int64_t *step, int threads,
                         const Scores *scores, Seen *seen) {
  const std::vector<Seen> totals =
      move_all(count, memory, facts, options, seed, static_cast<uint64_t>(*step), threads,
               divide(count, facts), scores);
  std::copy(totals.begin(), totals.end(), seen);
}

// Take one step with whole layers, and enter it into their tallies if it counts.
extern "C" void sbs_step(int64_t count, const Memory *memory, const Facts *facts,
                         const Options *options, uint64_t seed, int64_t *step, int64_t *skipped,
                         int skip_nonfinite, int threads) {
  const std::vector<Chunk> chunks = divide(count, facts);
  const std::vector<Sums> sums = add_up(count, memory, facts, chunks, threads);
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
  if (bad || still) return;  // nothing moves when the step does not count
  const uint64_t now = static_cast<uint64_t>(*step);
  *step += 1;
  const std::vector<Scores> scores = scores_of(moments, facts, options);
  const std::vector<Seen> seen =
      move_all(count, memory, facts, options, seed, now, threads, chunks, scores.data());
  for (int64_t l = 0; l < count; ++l) {
    const double n = static_cast<double>(facts[l].size);
    const double fixed = options[facts[l].group].probability;
    float *tally = memory[l].tally;
    tally[0] += 1.0f;
    const float chance = static_cast<float>(fixed < 0 ? seen[l].chances / n : fixed);
    tally[1] += (chance - tally[1]) / tally[0];
    tally[2] += (static_cast<float>(seen[l].batches / n) - tally[2]) / tally[0];
  }
}
