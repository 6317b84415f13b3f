// Several callers at once, each with several threads of the pool: for the thread sanitizer. Then children forked between
// and during calls, which must be able to decode, too: without the thread and address sanitizers, whose
// own locks may be held in them.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "../cpu/api.h"
#include "../cpu/pool.h"
#include "common.h"
#include "made_file.h"

namespace {

constexpr int kCount = 24, kOut = 16;

// A batch with one cut file in it.
class Batch {
 public:
  Batch() {
    for (int i = 0; i < kCount; ++i) {
      files_.push_back(made_file(20 + i * 3, i % 3 == 0));
      if (i == 5) files_.back().resize(files_.back().size() / 2);
    }
    for (int i = 0; i < kCount; ++i) {
      const int32_t side = 20 + i * 3;
      data_.push_back(files_[i].data());
      bytes_.push_back(static_cast<int64_t>(files_[i].size()));
      windows_.insert(windows_.end(), {1, 2, side - 3, side - 2});
      resized_.insert(resized_.end(), {kOut, kOut});
    }
  }

  Bytes decode(int threads) const {
    const std::vector<int32_t> zeros(kCount * 2);
    const Bytes orientations(kCount, 1), flips(kCount, 0);
    Bytes out(static_cast<size_t>(kCount) * kOut * kOut * 3);
    std::vector<int32_t> codes(kCount, -1);
    std::vector<char> messages(static_cast<size_t>(kCount) * GP_MESSAGE);
    const gp_view view = {kOut, kOut, windows_.data(), resized_.data(), zeros.data(), flips.data(), flips.data(), out.data()};
    const gp_images images = {kCount, 1, 0, threads, nullptr, data_.data(), bytes_.data(), zeros.data(),
                              orientations.data(), &view, {1 << 20, 1 << 26, 20}, codes.data(), messages.data()};
    if (gp_decode_crop_resize(&images) != 0) return {};
    for (int i = 0; i < kCount; ++i) {
      if (codes[i] != (i == 5 ? GP_DAMAGED : GP_OK)) return {};
    }
    memset(out.data() + 5 * kOut * kOut * 3, 0, kOut * kOut * 3);  // what a refused image leaves is undefined
    return out;
  }

 private:
  std::vector<Bytes> files_;
  std::vector<const uint8_t*> data_;
  std::vector<int64_t> bytes_;
  std::vector<int32_t> windows_, resized_;
};

// Several callers, each with its own number of threads.
void callers(const Batch& batch, const Bytes& wanted, int rounds) {
  std::vector<std::thread> all;
  for (int caller = 0; caller < 4; ++caller) {
    all.emplace_back([&, caller] {
      for (int round = 0; round < rounds; ++round) require(batch.decode(1 + (caller + round) % 5) == wanted, "other pixels");
    });
  }
  for (std::thread& one : all) one.join();
}

void child(const Batch& batch, const Bytes& wanted) {
  const pid_t id = fork();
  require(id >= 0, "fork");
  if (id == 0) {
    alarm(60);  // a child that hangs ends
    _exit(batch.decode(4) == wanted && batch.decode(2) == wanted ? 0 : 1);
  }
  int status = 0;
  require(waitpid(id, &status, 0) == id && WIFEXITED(status) && WEXITSTATUS(status) == 0, "a forked child can't decode");
}

}  // namespace

int main(int count, char** arguments) {
  const Batch batch;
  const Bytes wanted = batch.decode(1);
  require(!wanted.empty(), "the batch");
  return run_for(count, arguments, 3, "rounds", [&] {
    callers(batch, wanted, 40);
    for (int items : {0, 1, 2, 1000}) {
      std::vector<int> seen(items);
      gpupipe::for_each(items, 6, [&](int item) { ++seen[item]; });
      for (int times : seen) require(times == 1, "an item is done once");
    }
#ifndef __SANITIZE_THREAD__
    for (int i = 0; i < 5; ++i) child(batch, wanted);
    // While others decode: the pool's lock may be held at the fork.
    std::thread busy([&] { callers(batch, wanted, 15); });
    for (int i = 0; i < 10; ++i) child(batch, wanted);
    busy.join();
#endif
    require(batch.decode(3) == wanted, "the parent after its forks");
  });
}
