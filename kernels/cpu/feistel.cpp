// A generalized Feistel network on pairs of digits: kernels/feistel.py has it plain.
// Round by round over a block of numbers, so that the compiler makes vectors of it.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "api.h"

namespace gpupipe {
namespace {

#define GP_ALWAYS inline __attribute__((always_inline))

constexpr int kBlock = 128;  // whose digits stay in the first-level cache

// splitmix64's finalizer.
GP_ALWAYS uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// value % by, of a quotient below 2^32: as a double it is off by less than one.
GP_ALWAYS int64_t rest_of(int64_t value, int64_t by, double inverse) {
  int64_t rest = value - static_cast<int64_t>(static_cast<double>(value) * inverse) * by;
  rest += rest < 0 ? by : 0;
  return rest - (rest >= by ? by : 0);
}

// value % by, of any value, by at most 2^31: first its upper half, then what that leaves and the lower one.
GP_ALWAYS int64_t rest_of_word(uint64_t value, int64_t by, double inverse) {
  const int64_t upper = rest_of(static_cast<int64_t>(value >> 32), by, inverse);
  return rest_of(upper << 32 | static_cast<int64_t>(value & 0xFFFFFFFF), by, inverse);
}

// One value for all, or one for each.
GP_ALWAYS void spread(const uint64_t* from, bool each, int64_t at, int count, int64_t* to) {
  if (each) {
    std::memcpy(to, from + at, sizeof(int64_t) * count);
  } else {
    std::fill(to, to + count, static_cast<int64_t>(*from));
  }
}

GP_ALWAYS void permute(const gp_feistel& all, int64_t at, int count) {
  int64_t digits[2][kBlock], values[2][kBlock], keys[kBlock];
  double inverse[2][kBlock];
  uint64_t* numbers = all.numbers + at;
  spread(all.a, all.each_domain != 0, at, count, values[0]);
  spread(all.b, all.each_domain != 0, at, count, values[1]);
  for (int one = 0; one < 2; ++one) {
    for (int i = 0; i < count; ++i) inverse[one][i] = 1.0 / static_cast<double>(values[one][i]);
  }
  for (int i = 0; i < count; ++i) {
    const int64_t right = rest_of_word(numbers[i], values[1][i], inverse[1][i]);
    const double rest = static_cast<double>(static_cast<int64_t>(numbers[i]) - right);  // a multiple
    digits[0][i] = static_cast<int64_t>(rest * inverse[1][i] + 0.5);
    digits[1][i] = right;
  }
  for (int step = 0; step < all.rounds; ++step) {
    const int round = all.back ? all.rounds - 1 - step : step;
    spread(all.keys + round * (all.each_key ? all.count : 1), all.each_key != 0, at, count, keys);
    int64_t* digit = digits[round & 1];
    const int64_t *other = digits[~round & 1], *by = values[round & 1];
    const double* parts = inverse[round & 1];
    for (int i = 0; i < count; ++i) {
      const int64_t turn = rest_of_word(mixed(static_cast<uint64_t>(other[i] ^ keys[i])), by[i], parts[i]);
      const int64_t turned = digit[i] + (all.back ? by[i] - turn : turn);
      digit[i] = turned - (turned >= by[i] ? by[i] : 0);
    }
  }
  for (int i = 0; i < count; ++i) numbers[i] = static_cast<uint64_t>(digits[0][i] * values[1][i] + digits[1][i]);
}

void portable(const gp_feistel& all, int64_t at, int count) { permute(all, at, count); }

#if defined(__x86_64__)
// For its conversions of 64-bit integers, which AVX2 lacks.
__attribute__((target("avx512f,avx512dq,avx512vl"))) void avx512(const gp_feistel& all, int64_t at, int count) {
  permute(all, at, count);
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#else
void avx512(const gp_feistel& all, int64_t at, int count) { permute(all, at, count); }
bool has_avx512() { return false; }
#endif

}  // namespace
}  // namespace gpupipe

void gp_feistel_numbers(const gp_feistel* all) {
  const auto work = !all->portable && gpupipe::has_avx512() ? gpupipe::avx512 : gpupipe::portable;
  for (int64_t at = 0; at < all->count; at += gpupipe::kBlock) {
    work(*all, at, static_cast<int>(std::min<int64_t>(gpupipe::kBlock, all->count - at)));
  }
}
