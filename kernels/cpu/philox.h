// Philox4x32-10: four random words as a pure function of four counter words and two key words.
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), constants from its
// Random123 library.
#pragma once

#include <cstdint>

#define GP_INLINE inline __attribute__((always_inline))

namespace gpupipe {

struct Words {
  uint32_t word[4];
};

GP_INLINE Words philox_round(const Words& c, uint32_t key0, uint32_t key1) {
  const uint64_t first = uint64_t{0xD2511F53} * c.word[0], second = uint64_t{0xCD9E8D57} * c.word[2];
  return {{static_cast<uint32_t>(second >> 32) ^ c.word[1] ^ key0, static_cast<uint32_t>(second),
           static_cast<uint32_t>(first >> 32) ^ c.word[3] ^ key1, static_cast<uint32_t>(first)}};
}

// The rounds are written out by the compiler, so that a loop over counters is one that it makes vectors of.
template <int kRounds>
struct Philox {
  static GP_INLINE Words run(const Words& counter, uint32_t key0, uint32_t key1) {
    return Philox<kRounds - 1>::run(philox_round(counter, key0, key1), key0 + 0x9E3779B9, key1 + 0xBB67AE85);
  }
};

template <>
struct Philox<0> {
  static GP_INLINE Words run(const Words& counter, uint32_t, uint32_t) { return counter; }
};

GP_INLINE Words philox(const Words& counter, uint32_t key0, uint32_t key1) {
  return Philox<10>::run(counter, key0, key1);
}

}  // namespace gpupipe
