// The calls that see no files: the finish of a batch, rows of PNG, shuffles, lines, Philox, what a cache holds. Each with
// any numbers that Python allows, in memory that ends where it has to: calls.cpp SECONDS SEED.
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "../cpu/api.h"
#include "common.h"
#include "made_file.h"

namespace {

std::vector<uint8_t> any_bytes(size_t count) {
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(draw(256));
  return bytes;
}

const char* any_variant() {
  static const char* const kVariants[] = {"portable", "avx2", "avx512", nullptr};
  const char* variant = kVariants[draw(4)];
  return variant == nullptr || gp_has_variant(variant) ? variant : nullptr;
}

// A box inside, which may be empty.
void any_box(int32_t height, int32_t width, int32_t* box) {
  box[0] = static_cast<int32_t>(draw(height + 1)), box[1] = static_cast<int32_t>(draw(width + 1));
  box[2] = static_cast<int32_t>(draw(height - box[0] + 1)), box[3] = static_cast<int32_t>(draw(width - box[1] + 1));
}

#if defined(__x86_64__)
constexpr int32_t kDtypes = 4;
__attribute__((target("f16c"))) uint16_t half(float number) { return _cvtss_sh(number, 0); }
#else
constexpr int32_t kDtypes = 1;
uint16_t half(float) { return 0; }
#endif

// A number as the dtype has it.
void store(int32_t dtype, float number, uint8_t* to) {
  uint32_t bits;
  memcpy(&bits, &number, 4);
  const uint16_t brief = static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16), halved = half(number);
  if (dtype == 0) memcpy(to, &number, 4);
  if (dtype == 1) memcpy(to, &halved, 2);
  if (dtype == 2) memcpy(to, &brief, 2);
}

float any_number() { return (static_cast<float>(draw(4001)) - 2000) / 700.0f; }

// Every variant gives the same bits, on any number of threads; an image of its own size those of the image alone.
void finish() {
  const int32_t count = static_cast<int32_t>(draw(5)), height = 1 + static_cast<int32_t>(draw(draw(3) ? 9 : 40));
  const int32_t width = 1 + static_cast<int32_t>(draw(draw(3) ? 20 : 90));
  const int32_t dtype = static_cast<int32_t>(draw(kDtypes));
  const size_t bytes = dtype == 0 ? 4 : dtype == 3 ? 1 : 2, pixels = static_cast<size_t>(height) * width;
  const bool padded = draw(3) == 0, plain = dtype == 3;
  gp_finish batch{};
  batch.count = count, batch.height = height, batch.width = width, batch.dtype = dtype;
  batch.channels_last = static_cast<int32_t>(draw(2));
  std::vector<float> exact(768);
  for (int i = 0; i < 3; ++i) batch.offset[i] = any_number(), batch.scale[i] = any_number();
  const Exact<uint8_t> table(768 * bytes);
  for (int i = 0; i < 768; ++i) {
    exact[i] = (static_cast<float>(i % 256) - batch.offset[i / 256]) * batch.scale[i / 256];
    store(dtype, exact[i], table.get() + i * bytes);
  }
  const Exact<uint8_t> in(any_bytes(count * pixels * 3)), around(any_bytes(4));
  std::vector<int32_t> erase(count * 4), mix(count * 4), sizes(count * 2), partners(count);
  std::vector<uint32_t> keys(count * 2);
  std::vector<float> weights(count), value = {any_number(), any_number(), any_number()};
  std::vector<Exact<uint8_t>> own;
  std::vector<const uint8_t*> rows;
  for (int32_t i = 0; i < count; ++i) {
    sizes[i * 2] = 1 + static_cast<int32_t>(draw(height)), sizes[i * 2 + 1] = 1 + static_cast<int32_t>(draw(width));
    any_box(padded ? sizes[i * 2] : height, padded ? sizes[i * 2 + 1] : width, &erase[i * 4]);
    any_box(height, width, &mix[i * 4]);
    keys[i * 2] = draw(), keys[i * 2 + 1] = draw();
    partners[i] = static_cast<int32_t>(draw(count)), weights[i] = static_cast<float>(draw(1001)) / 1000;
    own.emplace_back(any_bytes(static_cast<size_t>(sizes[i * 2]) * sizes[i * 2 + 1] * 3));
  }
  for (const Exact<uint8_t>& one : own) rows.push_back(one.get());
  const Exact<int32_t> exact_erase(erase), exact_mix(mix), exact_sizes(sizes), exact_partners(partners);
  const Exact<uint32_t> exact_keys(keys);
  const Exact<float> exact_weights(weights), exact_value(value), exact_table(exact);
  batch.table = table.get(), batch.exact = exact_table.get(), batch.in = in.get();
  if (!plain && draw(2)) {
    batch.erase_boxes = exact_erase.get(), batch.erase_keys = exact_keys.get();
    if (draw(2)) batch.erase_value = exact_value.get();
  }
  if (padded) {
    batch.in = nullptr, batch.rows = rows.data(), batch.sizes = exact_sizes.get(), batch.around = around.get();
  } else if (!plain && draw(2)) {
    batch.partners = exact_partners.get(), batch.weights = exact_weights.get(), batch.mix_boxes = exact_mix.get();
  }
  std::vector<uint8_t> first;
  for (const char* variant : {"portable", any_variant(), any_variant()}) {
    const Exact<uint8_t> out(std::vector<uint8_t>(count * pixels * 3 * bytes, 0xAB));
    batch.out = out.get(), batch.variant = variant, batch.threads = 1 + static_cast<int32_t>(draw(3));
    require(gp_finish_batch(&batch) == 0, "a finish is refused");
    if (first.empty()) first = out.all();
    require(out.all() == first, "the numbers depend on the variant or the threads");
  }
}

int near(int left, int up, int corner) {
  const int guess = left + up - corner;
  const int along = abs(guess - left), down = abs(guess - up), across = abs(guess - corner);
  return along <= down && along <= across ? left : down <= across ? up : corner;
}

// By the standard's formulas (PNG 1.2, 6).
void png() {
  const int64_t height = 1 + draw(20), width = 1 + draw(30);
  std::vector<uint8_t> filtered = any_bytes(height * (width + 1));
  bool known = true;
  for (int64_t y = 0; y < height; ++y) {
    const uint8_t filter = static_cast<uint8_t>(draw(60) ? draw(5) : draw(256));
    filtered[y * (width + 1)] = filter;
    known = known && filter < 5;
  }
  const Exact<uint8_t> in(filtered), out((height + 1) * width);
  memset(out.get(), 0, width);
  require(gp_png_unfilter(height, width, in.get(), out.get()) == (known ? 0 : -1), "a filter's verdict");
  if (!known) return;
  std::vector<uint8_t> made((height + 1) * width);
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      const uint8_t* up = &made[y * width];
      const int left = x ? up[width + x - 1] : 0, corner = x ? up[x - 1] : 0;
      const int guesses[] = {0, left, up[x], (left + up[x]) / 2, near(left, up[x], corner)};
      made[(y + 1) * width + x] = static_cast<uint8_t>(filtered[y * (width + 1) + 1 + x] + guesses[filtered[y * (width + 1)]]);
    }
  }
  require(out.all() == made, "a PNG's values");
}

// There and back is nothing, with and without what only some CPUs have.
void feistel() {
  const int64_t count = draw(300);
  const int32_t rounds = 1 + static_cast<int32_t>(draw(8)), each_domain = draw(2), each_key = draw(2);
  std::vector<uint64_t> a(each_domain ? count : 1), b(a.size()), keys(rounds * (each_key ? count : 1)), numbers(count);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = 1 + draw() % (draw(2) ? 5 : uint64_t{1} << 31), b[i] = 1 + draw() % (draw(2) ? 5 : uint64_t{1} << 31);
  }
  for (uint64_t& key : keys) key = uint64_t{draw()} << 33 ^ draw();
  for (int64_t i = 0; i < count; ++i) {
    const size_t at = each_domain ? i : 0;
    numbers[i] = (uint64_t{draw()} << 31 ^ draw()) % (a[at] * b[at]);
  }
  const Exact<uint64_t> exact_a(a), exact_b(b), exact_keys(keys), one(numbers), other(numbers);
  const auto go = [&](const Exact<uint64_t>& all, int32_t back, int32_t portable) {
    const gp_feistel call = {count, all.get(), exact_a.get(), exact_b.get(), exact_keys.get(), rounds, each_domain, each_key, back, portable};
    gp_feistel_numbers(&call);
  };
  go(one, 0, 0), go(other, 0, 1);
  require(one.all() == other.all(), "a shuffle depends on the CPU");
  for (int64_t i = 0; i < count; ++i) require(one.get()[i] < a[each_domain ? i : 0] * b[each_domain ? i : 0], "a shuffle leaves its domain");
  go(one, 1, static_cast<int32_t>(draw(2)));
  require(one.all() == numbers, "a shuffle's way back");
}

// A line of blocks of some data, whose regions are shuffled, is a permutation; the way back leads where it began.
void line() {
  const int64_t block_count = 1 + draw(6), region_count = 1 + draw(4);
  std::vector<int64_t> sizes(block_count), order(block_count), stored(block_count);
  int64_t total = 0;
  for (int64_t i = 0; i < block_count; ++i) stored[i] = total, order[i] = i, total += sizes[i] = 1 + draw(40);
  for (int64_t i = block_count - 1; i > 0; --i) std::swap(order[i], order[draw(static_cast<uint32_t>(i + 1))]);
  std::vector<int64_t> begins(block_count), moves(block_count), back_moves(block_count), ends(region_count + 1), a, b;
  int64_t place = 0;
  for (int64_t i = 0; i < block_count; ++i) {
    begins[i] = place, moves[i] = stored[order[i]] - place, back_moves[order[i]] = -moves[i];
    place += sizes[order[i]];
  }
  for (int64_t i = 1; i < region_count; ++i) ends[i] = draw(static_cast<uint32_t>(total + 1));
  ends[region_count] = total;
  std::sort(ends.begin(), ends.end());
  for (int64_t i = 0; i < region_count; ++i) {
    const int64_t wide = 1 + draw(9), size = std::max<int64_t>(1, ends[i + 1] - ends[i]);
    a.push_back((size + wide - 1) / wide), b.push_back(wide);
  }
  std::vector<uint64_t> keys(1 + draw(6));
  for (uint64_t& key : keys) key = uint64_t{draw()} << 33 ^ draw();
  std::vector<int64_t> places(total);
  for (int64_t i = 0; i < total; ++i) places[i] = i;
  const Exact<int64_t> exact_begins(begins), exact_stored(stored), exact_moves(moves), exact_back(back_moves), exact_ends(ends);
  const Exact<int64_t> exact_a(a), exact_b(b);
  const Exact<uint64_t> exact_keys(keys);
  const auto through = [&](const std::vector<int64_t>& from, bool back, int32_t portable, std::vector<int64_t>& regions) {
    const Exact<int64_t> numbers(from), found(from.size()), of(from.size());
    const gp_line call = {total, numbers.get(), back ? exact_stored.get() : exact_begins.get(),
                          back ? exact_back.get() : exact_moves.get(), exact_ends.get(), exact_a.get(), exact_b.get(),
                          exact_keys.get(), of.get(), found.get(), block_count, region_count,
                          static_cast<int32_t>(keys.size()), back, portable};
    gp_line_numbers(&call);
    regions = of.all();
    return found.all();
  };
  std::vector<int64_t> regions, others;
  const std::vector<int64_t> samples = through(places, false, 0, regions);
  require(samples == through(places, false, 1, others) && regions == others, "a line depends on the CPU");
  std::vector<int64_t> sorted = samples;
  std::sort(sorted.begin(), sorted.end());
  require(sorted == places, "a line is no permutation");
  const std::vector<int64_t> again = through(samples, true, static_cast<int32_t>(draw(2)), regions);
  for (int64_t i = 0; i < total; ++i) require(ends[regions[i]] + again[i] == i, "a line's way back");
}

void philox() {
  const int64_t count = draw(50);
  std::vector<uint64_t> words(count * 4);
  for (uint64_t& word : words) word = draw();
  const Exact<uint64_t> all(words);
  gp_philox(count, all.get(), draw(), draw());
  for (uint64_t word : all.all()) require(word >> 32 == 0, "a word of more than 32 bits");
}

// What it holds never takes more than its room, and is what was said to be kept and not to go.
void held() {
  const int64_t capacity = draw(3) ? draw(2000) : 0;
  gp_held* const cache = gp_held_new(capacity);
  std::vector<int64_t> size_of(60), held;
  for (int64_t& size : size_of) size = 1 + draw(draw(9) ? 100 : 3000);
  const auto named = [&](const gp_held_step& step) {
    const Exact<int64_t> out(step.named);
    gp_held_named(cache, out.get());
    return out.all();
  };
  const auto drop = [&](const std::vector<int64_t>& gone) {
    for (int64_t one : gone) {
      const auto at = std::find(held.begin(), held.end(), one);
      require(at != held.end(), "something goes that was not held");
      held.erase(at);
    }
  };
  constexpr int64_t kSteps = 30;
  std::vector<std::vector<bool>> used(60, std::vector<bool>(kSteps));
  for (std::vector<bool>& steps : used) {
    for (int64_t step = 0; step < kSteps; ++step) steps[step] = draw(5) == 0;
  }
  const auto next = [&](int64_t index, int64_t now) {
    for (int64_t step = now + 1; step < kSteps; ++step) {
      if (used[index][step]) return step;
    }
    return kSteps + index % 3;
  };
  for (int64_t now = 0; now < kSteps; ++now) {
    std::vector<int64_t> indices, sizes, times;
    for (int64_t index = 0; index < 60; ++index) {
      if (!used[index][now] || draw(9) == 0) continue;  // now and then it is not read after all
      indices.push_back(index), sizes.push_back(size_of[index]), times.push_back(next(index, now));
    }
    const Exact<int64_t> exact_indices(indices), exact_sizes(sizes), exact_times(times);
    const Exact<uint8_t> hits(indices.size()), keep(indices.size());
    gp_held_step step = {cache, now, now + static_cast<int64_t>(draw(2)), static_cast<int64_t>(indices.size()),
                         exact_indices.get(), exact_sizes.get(), exact_times.get(), hits.get(), keep.get(), 0};
    require(gp_held_hits(&step) == 0, "hits");
    const std::vector<int64_t> rest = named(step);
    if (!rest.empty()) {  // of those the next use is told
      std::vector<int64_t> more, later;
      for (int64_t one : rest) more.push_back(size_of[one]), later.push_back(next(one, now));
      const Exact<int64_t> exact_rest(rest), exact_more(more), exact_later(later);
      gp_held_step filed = {cache, now, now, static_cast<int64_t>(rest.size()), exact_rest.get(), exact_more.get(), exact_later.get(), nullptr, nullptr, 0};
      require(gp_held_file(&filed) == 0, "file");
    }
    for (size_t i = 0; i < indices.size(); ++i) {
      if (hits.get()[i]) require(std::count(held.begin(), held.end(), indices[i]) == 1, "a hit of what is not held");
    }
    require(gp_held_keep(&step) == 0, "keep");
    drop(named(step));
    for (size_t i = 0; i < indices.size(); ++i) {
      const bool there = std::count(held.begin(), held.end(), indices[i]) != 0;
      if (keep.get()[i] && !there) held.push_back(indices[i]);
    }
    gp_held_step all = {cache, 0, 0, 0, nullptr, nullptr, nullptr, nullptr, nullptr, 0};
    require(gp_held_all(&all) == 0, "all");
    std::vector<int64_t> there = named(all), known = held;
    std::sort(there.begin(), there.end());
    std::sort(known.begin(), known.end());
    require(there == known, "what is held");
    require(gp_held_bytes(cache) >= 0, "its memory");
  }
  gp_held_free(cache);
}

// Several files at once are walked as each alone.
void walks() {
  static const Bytes whole = made_file(24, draw(2));
  std::vector<Exact<uint8_t>> files;
  std::vector<const uint8_t*> data;
  std::vector<int64_t> bytes;
  for (uint32_t n = draw(6); n > 0; --n) {
    Bytes file = whole;
    for (uint32_t m = draw(4); m > 0; --m) file[draw(static_cast<uint32_t>(file.size()))] = static_cast<uint8_t>(draw(256));
    if (draw(4) == 0) file.resize(draw(static_cast<uint32_t>(file.size())));
    files.emplace_back(file);
  }
  for (const Exact<uint8_t>& file : files) data.push_back(file.get()), bytes.push_back(static_cast<int64_t>(file.size));
  std::vector<gp_header> headers(files.size());
  std::vector<const char*> odd(files.size());
  const gp_walks all = {static_cast<int32_t>(files.size()), 1 + static_cast<int32_t>(draw(3)), 100, data.data(), bytes.data(), headers.data(), odd.data()};
  gp_walk_files(&all);
  for (size_t i = 0; i < files.size(); ++i) {
    gp_header header{};
    const char* alone = gp_walk(data[i], files[i].size, 100, &header);
    require((alone == nullptr) == (odd[i] == nullptr) && header.height == headers[i].height, "a file among others is another");
  }
}

}  // namespace

int main(int count, char** arguments) {
  return run_for(count, arguments, 3, "calls", [] {
    switch (draw(7)) {
      case 0: return png();
      case 1: return feistel();
      case 2: return line();
      case 3: return philox();
      case 4: return held();
      case 5: return walks();
      default: return finish();
    }
  });
}
