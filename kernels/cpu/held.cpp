// What a cache holds, by the time of each one's next use: kernels/furthest.py has it plain.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "api.h"

namespace {

constexpr size_t kSlice = 256;  // samples of a list of which those that go are named in the order in which they came

struct Entry {
  int64_t index, size;
};

}  // namespace

struct gp_held {
  int64_t capacity, room;
  std::unordered_map<int64_t, std::vector<Entry>> due;  // by time of the next use; no list is empty
  std::vector<int64_t> times;                           // a heap of these; some have no list any more
  std::vector<int64_t> named;                           // what the last call found
  std::vector<int64_t> sorted;                          // of a step
  std::vector<std::pair<int64_t, int32_t>> others;

  explicit gp_held(int64_t size) : capacity(size), room(size) {}

  void file(int64_t index, int64_t size, int64_t time) {
    std::vector<Entry>& list = due[time];
    if (list.empty()) {
      times.push_back(time);
      std::push_heap(times.begin(), times.end());
    }
    list.push_back({index, size});
  }

  void forget_old_times() {
    if (times.size() <= 2 * due.size() + kSlice) return;
    times.clear();
    for (const auto& [time, list] : due) times.push_back(time);
    std::make_heap(times.begin(), times.end());
  }

  // The last time at which something is needed, or -1.
  int64_t latest() {
    while (!times.empty() && due.find(times.front()) == due.end()) {
      std::pop_heap(times.begin(), times.end());
      times.pop_back();
    }
    return times.empty() ? -1 : times.front();
  }

  // Those needed now, of which `named` are not among the indices.
  void hits(const gp_held_step& step) {
    sorted.clear();
    const auto now = due.find(step.now);
    if (now != due.end()) {
      for (const Entry& entry : now->second) sorted.push_back(entry.index);
      due.erase(now);
    }
    std::sort(sorted.begin(), sorted.end());
    std::vector<bool> found(sorted.size());
    for (int64_t row = 0; row < step.count; ++row) {
      const auto at = std::lower_bound(sorted.begin(), sorted.end(), step.indices[row]);
      step.hits[row] = at != sorted.end() && *at == step.indices[row];
      if (step.hits[row]) found[at - sorted.begin()] = true;
    }
    named.clear();
    for (size_t one = 0; one < sorted.size(); ++one) {
      if (!found[one]) named.push_back(sorted[one]);
    }
  }

  // Which of a step's samples are held from then on; `named` are those that go.
  void keep(const gp_held_step& step) {
    named.clear();
    others.clear();
    int64_t over = 0;
    for (int64_t row = 0; row < step.count; ++row) {
      step.keep[row] = step.hits[row] && step.times[row] <= step.busy;
      if (step.keep[row]) continue;
      if (step.hits[row]) room += step.sizes[row];
      if (step.sizes[row] <= capacity) {
        others.emplace_back(step.times[row], static_cast<int32_t>(row));
        over += step.sizes[row];
      }
    }
    fit(step, over - room);
    for (const auto& other : others) step.keep[other.second] = 1;
    forget_old_times();
    sorted.clear();
    for (int64_t row = 0; row < step.count; ++row) {
      if (step.keep[row]) {
        file(step.indices[row], step.sizes[row], step.times[row]);
      } else if (step.hits[row]) {
        sorted.push_back(step.indices[row]);
      }
    }
    named.insert(named.begin(), sorted.begin(), sorted.end());
  }

  // Leaves those of the others that are taken in, and lets go what has to make room for them.
  void fit(const gp_held_step& step, int64_t over) {
    if (over > 0) std::sort(others.begin(), others.end());
    while (over > 0) {
      const int64_t last = latest();
      if (last > step.busy && (others.empty() || others.back().first < last)) {
        std::vector<Entry>& list = due.find(last)->second;
        const size_t begin = named.size(), left = list.size() - std::min(list.size(), kSlice);
        for (; over > 0 && list.size() > left; list.pop_back()) {
          named.push_back(list.back().index);
          over -= list.back().size;
        }
        std::reverse(named.begin() + static_cast<std::ptrdiff_t>(begin), named.end());
        if (list.empty()) due.erase(last);
      } else if (!others.empty()) {  // it comes no sooner than what is held
        over -= step.sizes[others.back().second];
        others.pop_back();
      } else {
        break;
      }
    }
    room = -over;
  }
};

namespace {

int32_t guarded(const std::function<void()>& work) {
  try {
    work();
    return 0;
  } catch (const std::exception&) {
    return -2;
  }
}

}  // namespace

gp_held* gp_held_new(int64_t capacity) { return new (std::nothrow) gp_held(capacity); }

void gp_held_free(gp_held* held) { delete held; }

int32_t gp_held_hits(gp_held_step* step) {
  return guarded([&] {
    step->held->hits(*step);
    step->named = static_cast<int64_t>(step->held->named.size());
  });
}

int32_t gp_held_keep(gp_held_step* step) {
  return guarded([&] {
    step->held->keep(*step);
    step->named = static_cast<int64_t>(step->held->named.size());
  });
}

int32_t gp_held_file(gp_held_step* step) {
  return guarded([&] {
    for (int64_t row = 0; row < step->count; ++row) {
      step->held->file(step->indices[row], step->sizes[row], step->times[row]);
    }
  });
}

int32_t gp_held_all(gp_held_step* step) {
  return guarded([&] {
    gp_held& held = *step->held;
    held.named.clear();
    for (const auto& [time, list] : held.due) {
      for (const Entry& entry : list) held.named.push_back(entry.index);
    }
    step->named = static_cast<int64_t>(held.named.size());
  });
}

void gp_held_named(const gp_held* held, int64_t* out) { std::copy(held->named.begin(), held->named.end(), out); }

int64_t gp_held_bytes(const gp_held* held) {
  size_t sum = held->times.capacity() * sizeof(int64_t) + held->due.bucket_count() * sizeof(void*);
  for (const auto& [time, list] : held->due) {
    sum += sizeof(void*) + sizeof(time) + sizeof(list) + list.capacity() * sizeof(Entry);
  }
  return static_cast<int64_t>(sum);
}
