// Vectors of W floats: the one place where instruction sets differ.
//
// Multiply-add is spelled out and the build forbids the compiler to form its own (-ffp-contract=off), so
// that the same arithmetic on the same numbers gives the same bits wherever it is inlined.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
#include <immintrin.h>
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace ms_eagle {

#if defined(__AVX512F__)
constexpr int W = 16;
constexpr int kLevel = 2;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int W = 8;
constexpr int kLevel = 1;
#else
constexpr int W = 4;
constexpr int kLevel = 0;
#endif

typedef float Vf __attribute__((vector_size(4 * W)));
typedef int32_t Vi __attribute__((vector_size(4 * W)));

inline Vf load(const float* p) {
  Vf v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline void store(float* p, Vf v) { std::memcpy(p, &v, sizeof v); }

inline Vf broadcast(float s) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vf>(_mm512_set1_ps(s));
#elif defined(__AVX2__) && defined(__FMA__)
  return reinterpret_cast<Vf>(_mm256_set1_ps(s));
#else
  return Vf{s, s, s, s};
#endif
}

// a * b + c: one rounding where the machine has the instruction, else two, always the same on one build.
inline Vf fma(Vf a, Vf b, Vf c) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vf>(_mm512_fmadd_ps(a, b, c));
#elif defined(__AVX2__) && defined(__FMA__)
  return reinterpret_cast<Vf>(_mm256_fmadd_ps(a, b, c));
#elif defined(__ARM_NEON) && defined(__aarch64__)
  return reinterpret_cast<Vf>(vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b));
#else
  return a * b + c;
#endif
}

inline Vf max(Vf a, Vf b) { return a > b ? a : b; }

// Sum and maximum over the lanes, always in the same order.
inline float sum_lanes(Vf v) {
  float lanes[W];
  std::memcpy(lanes, &v, sizeof v);
  for (int half = W / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

inline float max_lanes(Vf v) {
  float best = v[0];
  for (int i = 1; i < W; ++i) best = v[i] > best ? v[i] : best;
  return best;
}

inline bool any(Vi mask) {
  Vi zero = {};
  return std::memcmp(&mask, &zero, sizeof mask) != 0;
}

// Lanes a0 b0 a1 b1 ... of the lower, and of the upper, halves.
inline void interleave(Vf a, Vf b, Vf* low, Vf* high) {
  Vi first, second;
  for (int i = 0; i < W; ++i) {
    first[i] = (i % 2 ? W : 0) + i / 2;
    second[i] = first[i] + W / 2;
  }
#if defined(__clang__)
#if __AVX512F__
  *low = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  *high = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif defined(__AVX2__) && defined(__FMA__)
  *low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  *high = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
  *low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  *high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
#else
  *low = __builtin_shuffle(a, b, first);
  *high = __builtin_shuffle(a, b, second);
#endif
}

// Transpose a W x W block in registers: every pass rotates the joint (row, lane) index by one bit.
inline void transpose(Vf rows[W]) {
  for (int pass = 1; pass < W; pass *= 2) {
    Vf next[W];
    for (int i = 0; i < W / 2; ++i) interleave(rows[i], rows[i + W / 2], &next[2 * i], &next[2 * i + 1]);
    for (int i = 0; i < W; ++i) rows[i] = next[i];
  }
}

// exp(x) to about 1 ulp; 0 below -87.3, the largest finite power of two's neighbourhood above 88; NaN stays.
// Cody-Waite reduction x = n ln2 + r and a polynomial in r (the classic Cephes scheme).
inline Vf exp(Vf x) {
  const Vf high = broadcast(88.0f), low = broadcast(-87.3f), magic = broadcast(12582912.0f);
  const Vf bounded = x > high ? high : (x < low ? low : x);
  const Vf shifted = fma(bounded, broadcast(1.44269504088896341f), magic);
  const Vf n = shifted - magic;
  Vf r = fma(n, broadcast(-0.693359375f), bounded);
  r = fma(n, broadcast(2.12194440e-4f), r);
  Vf p = broadcast(1.9875691500e-4f);
  p = fma(p, r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  p = fma(p, r * r, r + broadcast(1.0f));
  Vi bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  typedef uint32_t Vu __attribute__((vector_size(4 * W)));
  const Vu exponent = ((Vu)bits << 23) + 0x3f800000u;  // the magic number's own bits leave by the shift
  Vf scale;
  std::memcpy(&scale, &exponent, sizeof scale);
  return x < low ? Vf{} : p * scale;
}

inline float exp(float x) { return exp(broadcast(x))[0]; }

}  // namespace ms_eagle
