// Integer products of codes: beside vec.h the other place where instruction sets differ.
//
// A vector of codes holds four to a lane, 0..255 or 0..15. Of a row of x four codes, -127..127, are broadcast to all
// lanes, and every lane adds the sum of its four products. All sums are exact, so every instruction set has the same.
#pragma once

#include "vec.h"

namespace ms_eagle {

typedef uint8_t Vb __attribute__((vector_size(4 * W)));
typedef uint16_t Vs __attribute__((vector_size(4 * W)));
typedef uint32_t Vw __attribute__((vector_size(4 * W)));

#if defined(__AVX512VNNI__) && defined(__AVX512F__)
#define MS_EAGLE_DOT 1
#else
#define MS_EAGLE_DOT 0
#endif

inline Vb load_codes(const uint8_t* p) {
  Vb v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline Vi broadcast(int32_t s) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vi>(_mm512_set1_epi32(s));
#elif defined(__AVX2__) && defined(__FMA__)
  return reinterpret_cast<Vi>(_mm256_set1_epi32(s));
#else
  return Vi{s, s, s, s};
#endif
}

inline Vi broadcast_four(const void* p) {
  int32_t four;
  std::memcpy(&four, p, sizeof four);
  return broadcast(four);
}

inline Vf to_float(Vi v) { return __builtin_convertvector(v, Vf); }

// W numbers of half precision.
inline Vf load_half(const uint8_t* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vf>(_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));  // GCC warns of the plain one
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
  return reinterpret_cast<Vf>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  uint16_t half[W];
  std::memcpy(half, p, sizeof half);
  Vf v;
  for (int i = 0; i < W; ++i) {
    const uint32_t bits = uint32_t{half[i]} & 0x7fff, sign = (uint32_t{half[i]} & 0x8000) << 16;
    const uint32_t moved = bits << 13;  // the exponent is 112 too small, also that of a subnormal number
    float value;
    std::memcpy(&value, &moved, sizeof value);
    value *= 0x1p112f;
    v[i] = sign ? -value : value;
  }
  return v;
#endif
}

// Codes of four bits: sums of up to eight vectors of them.
struct NibbleDot {
#if MS_EAGLE_DOT || !(defined(__AVX2__) && defined(__FMA__))
  Vi sum = {};
#else
  Vs sum = {};  // pairs of products, at most 8 * 2 * 15 * 127
#endif

  void add(Vb codes, const int8_t* x) {
#if MS_EAGLE_DOT
    sum = reinterpret_cast<Vi>(_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes, (__m512i)broadcast_four(x)));
#elif defined(__AVX512F__)
    sum += reinterpret_cast<Vs>(_mm512_maddubs_epi16((__m512i)codes, (__m512i)broadcast_four(x)));
#elif defined(__AVX2__) && defined(__FMA__)
    sum += reinterpret_cast<Vs>(_mm256_maddubs_epi16((__m256i)codes, (__m256i)broadcast_four(x)));
#else
    const Vw words = reinterpret_cast<Vw>(codes);
    for (int j = 0; j < 4; ++j) sum += reinterpret_cast<Vi>(words >> (8 * j) & 0xff) * broadcast(int32_t{x[j]});
#endif
  }

  Vi total() const {
#if MS_EAGLE_DOT
    return sum;
#elif defined(__AVX512F__)
    return reinterpret_cast<Vi>(_mm512_madd_epi16((__m512i)sum, _mm512_set1_epi16(1)));
#elif defined(__AVX2__) && defined(__FMA__)
    return reinterpret_cast<Vi>(_mm256_madd_epi16((__m256i)sum, _mm256_set1_epi16(1)));
#else
    return sum;
#endif
  }
};

// Codes of eight bits. Where products of bytes would be cut off at 16 bits, the codes and x are widened first: even
// ones apart from odd ones, which takes no shuffle.
struct ByteDot {
  Vi sum = {};

#if MS_EAGLE_DOT || !(defined(__AVX2__) && defined(__FMA__))
  using Four = int8_t;  // of x
  struct Codes {
    Vb all;
    explicit Codes(Vb codes) : all(codes) {}
  };
#else
  using Four = int16_t;  // of x, in the order 0 2 1 3
  struct Codes {
    Vs even, odd;
    explicit Codes(Vb codes) : even((Vs)codes & 0xff), odd((Vs)codes >> 8) {}
  };
#endif

  void add(const Codes& codes, const Four* x) {
#if MS_EAGLE_DOT
    sum = reinterpret_cast<Vi>(_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes.all, (__m512i)broadcast_four(x)));
#elif defined(__AVX512F__)
    sum += reinterpret_cast<Vi>(_mm512_madd_epi16((__m512i)codes.even, (__m512i)broadcast_four(x)));
    sum += reinterpret_cast<Vi>(_mm512_madd_epi16((__m512i)codes.odd, (__m512i)broadcast_four(x + 2)));
#elif defined(__AVX2__) && defined(__FMA__)
    sum += reinterpret_cast<Vi>(_mm256_madd_epi16((__m256i)codes.even, (__m256i)broadcast_four(x)));
    sum += reinterpret_cast<Vi>(_mm256_madd_epi16((__m256i)codes.odd, (__m256i)broadcast_four(x + 2)));
#else
    const Vw words = reinterpret_cast<Vw>(codes.all);
    for (int j = 0; j < 4; ++j) sum += reinterpret_cast<Vi>(words >> (8 * j) & 0xff) * broadcast(int32_t{x[j]});
#endif
  }

  Vi total() const { return sum; }
};

}  // namespace ms_eagle
