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

// Numbers, and the values of their digits.
struct Block {
  int count;
  uint64_t numbers[kBlock];
  int64_t values[2][kBlock];
};

template <typename Keys>
GP_ALWAYS void network(Block& block, int rounds, bool back, const Keys& keys_of) {
  int64_t digits[2][kBlock], keys[kBlock];
  double inverse[2][kBlock];
  const int count = block.count;
  for (int one = 0; one < 2; ++one) {
    for (int i = 0; i < count; ++i) inverse[one][i] = 1.0 / static_cast<double>(block.values[one][i]);
  }
  for (int i = 0; i < count; ++i) {
    const int64_t right = rest_of_word(block.numbers[i], block.values[1][i], inverse[1][i]);
    const double rest = static_cast<double>(static_cast<int64_t>(block.numbers[i]) - right);  // a multiple
    digits[0][i] = static_cast<int64_t>(rest * inverse[1][i] + 0.5);
    digits[1][i] = right;
  }
  for (int step = 0; step < rounds; ++step) {
    const int round = back ? rounds - 1 - step : step;
    keys_of(round, keys);
    int64_t* digit = digits[round & 1];
    const int64_t *other = digits[~round & 1], *by = block.values[round & 1];
    const double* parts = inverse[round & 1];
    for (int i = 0; i < count; ++i) {
      const int64_t turn = rest_of_word(mixed(static_cast<uint64_t>(other[i] ^ keys[i])), by[i], parts[i]);
      const int64_t turned = digit[i] + (back ? by[i] - turn : turn);
      digit[i] = turned - (turned >= by[i] ? by[i] : 0);
    }
  }
  for (int i = 0; i < count; ++i) {
    block.numbers[i] = static_cast<uint64_t>(digits[0][i] * block.values[1][i] + digits[1][i]);
  }
}

GP_ALWAYS void permute(const gp_feistel& all, int64_t at, int count) {
  Block block;
  block.count = count;
  std::memcpy(block.numbers, all.numbers + at, sizeof(uint64_t) * count);
  spread(all.a, all.each_domain != 0, at, count, block.values[0]);
  spread(all.b, all.each_domain != 0, at, count, block.values[1]);
  network(block, all.rounds, all.back != 0, [&](int round, int64_t* keys) {
    spread(all.keys + round * (all.each_key ? all.count : 1), all.each_key != 0, at, count, keys);
  });
  std::memcpy(all.numbers + at, block.numbers, sizeof(uint64_t) * count);
}

// The last of so many ascending numbers that is at most as large as each of some, of which the first is.
GP_ALWAYS void last_below(const int64_t* ascending, int64_t total, const int64_t* numbers, int count, int64_t* found) {
  int64_t at[kBlock] = {};  // here, so that it is plain that no other array is this one
  for (int64_t left = total; left > 1;) {
    const int64_t half = left / 2;
    for (int i = 0; i < count; ++i) at[i] = ascending[at[i] + half] <= numbers[i] ? at[i] + half : at[i];
    left -= half;
  }
  std::memcpy(found, at, sizeof(int64_t) * count);
}

// Through a line's two permutations: to the samples at places, or back to the regions and places of samples.
GP_ALWAYS void go_through(const gp_line& line, int64_t at, int count) {
  int64_t *regions = line.regions + at, *found = line.found + at;
  int64_t places[kBlock], blocks[kBlock], begins[kBlock], sizes[kBlock];
  std::memcpy(places, line.numbers + at, sizeof(int64_t) * count);
  if (line.back) {
    last_below(line.begins, line.block_count, places, count, blocks);
    for (int i = 0; i < count; ++i) places[i] += line.moves[blocks[i]];
  }
  last_below(line.region_begins, line.region_count, places, count, regions);
  Block block;
  block.count = count;
  uint64_t numbers[kBlock];  // of the regions
  int rows[kBlock];
  for (int i = 0; i < count; ++i) {
    begins[i] = line.region_begins[regions[i]];
    sizes[i] = line.region_begins[regions[i] + 1] - begins[i];
    block.numbers[i] = static_cast<uint64_t>(places[i] - begins[i]);
    block.values[0][i] = line.a[regions[i]];
    block.values[1][i] = line.b[regions[i]];
    numbers[i] = static_cast<uint64_t>(regions[i]);
    rows[i] = i;
  }
  while (block.count > 0) {
    network(block, line.rounds, line.back != 0, [&](int round, int64_t* keys) {
      for (int i = 0; i < block.count; ++i) keys[i] = static_cast<int64_t>(mixed(line.keys[round] ^ numbers[i]));
    });
    int again = 0;  // those that are led beyond the size
    for (int i = 0; i < block.count; ++i) {
      places[rows[i]] = static_cast<int64_t>(block.numbers[i]);
      if (places[rows[i]] < sizes[rows[i]]) continue;
      block.numbers[again] = block.numbers[i];
      block.values[0][again] = block.values[0][i];
      block.values[1][again] = block.values[1][i];
      numbers[again] = numbers[i];
      rows[again++] = rows[i];
    }
    block.count = again;
  }
  if (!line.back) {
    for (int i = 0; i < count; ++i) places[i] += begins[i];
    last_below(line.begins, line.block_count, places, count, blocks);
    for (int i = 0; i < count; ++i) places[i] += line.moves[blocks[i]];
  }
  std::memcpy(found, places, sizeof(int64_t) * count);
}

void portable(const gp_feistel& all, int64_t at, int count) { permute(all, at, count); }
void portable(const gp_line& line, int64_t at, int count) { go_through(line, at, count); }

#if defined(__x86_64__)
#define GP_AVX512 __attribute__((target("avx512f,avx512dq,avx512vl")))
// For its conversions of 64-bit integers, which AVX2 lacks.
GP_AVX512 void avx512(const gp_feistel& all, int64_t at, int count) { permute(all, at, count); }
GP_AVX512 void avx512(const gp_line& line, int64_t at, int count) { go_through(line, at, count); }

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#else
void avx512(const gp_feistel& all, int64_t at, int count) { permute(all, at, count); }
void avx512(const gp_line& line, int64_t at, int count) { go_through(line, at, count); }
bool has_avx512() { return false; }
#endif

template <typename All>
void in_blocks(const All& all) {
  const bool best = !all.portable && has_avx512();
  for (int64_t at = 0; at < all.count; at += kBlock) {
    const int count = static_cast<int>(std::min<int64_t>(kBlock, all.count - at));
    best ? avx512(all, at, count) : portable(all, at, count);
  }
}

}  // namespace
}  // namespace gpupipe

void gp_feistel_numbers(const gp_feistel* all) { gpupipe::in_blocks(*all); }
void gp_line_numbers(const gp_line* line) { gpupipe::in_blocks(*line); }
