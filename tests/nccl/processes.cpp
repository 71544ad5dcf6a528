// A stand-in for NCCL whose ranks may be processes, over that for CUDA: what a rank gives lies in a file, in a folder that the unique id names
// (in TMPDIR, else /tmp), and the others wait for it. As slow as that sounds; for tests of how processes start and meet.
#include "cuda/double.hpp"
#include "elements.hpp"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

enum class kind { broadcast, all_reduce, reduce, reduce_scatter, all_gather, all_to_all, send, recv };
using bytes = std::vector<char>;

struct member {
  std::string name;  // of its files
  int size = 0, rank = 0, device = 0, splits = 0;
  std::size_t collectives = 0;
  std::map<int, std::size_t> sent, received;  // by peer
  std::atomic<bool> aborted = false;
  std::mutex mutex;
  // Files of the last job's collectives on each stream: who has given to the next has read them.
  std::map<cudaStream_t, std::vector<std::string>> before;

  std::string file(const std::string& what, int of) const { return name + '.' + what + '.' + std::to_string(of); }
  static void give(const std::string& file, const void* from, std::size_t n) {
    std::ofstream(file + ".part", std::ios::binary)
        .write(static_cast<const char*>(from), static_cast<std::streamsize>(n));
    std::filesystem::rename(file + ".part", file);
  }
  // Empty where this rank has aborted.
  bytes take(const std::string& file, std::size_t n) const {
    while (!std::filesystem::exists(file)) {
      if (aborted) return {};
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    bytes x(n);
    std::ifstream in(file, std::ios::binary);
    if (in.read(x.data(), static_cast<std::streamsize>(n));
        in.gcount() != static_cast<std::streamsize>(n) || in.get() != EOF) {
      std::fprintf(stderr, "processes.cpp: %s has not %zu bytes: ranks disagree\n", file.c_str(), n);
      std::abort();
    }
    return x;
  }
};

struct op {
  kind what;
  const void* from;
  void* to;
  std::size_t count;
  ncclDataType_t type;
  ncclRedOp_t fold;
  int peer;  // or root
  std::shared_ptr<member> who;
  std::string file{};

  std::size_t block() const { return count * nccl_double::width(type); }
  bool message() const { return what == kind::send || what == kind::recv; }
  std::size_t given() const {
    return what == kind::reduce_scatter || what == kind::all_to_all ? block() * static_cast<std::size_t>(who->size)
                                                                    : block();
  }

  void give() const {
    if (what == kind::recv) return;
    member::give(what == kind::send ? file : who->file(file, who->rank), from, given());
  }
  void take() const {
    if (what == kind::send) return;
    if (what == kind::recv) {
      store(0, who->take(file, block()));
      std::filesystem::remove(file);
      return;
    }
    const std::size_t mine = static_cast<std::size_t>(who->rank) * block();
    bytes sum;
    for (int r = who->size - 1; r >= 0; --r) {  // from the last rank down, which is not heddle's order
      const bytes x = who->take(who->file(file, r), given());
      if (who->aborted) return;
      const auto at = static_cast<std::size_t>(r) * block();
      if (what == kind::broadcast && r == peer) store(0, x);
      if (what == kind::all_gather) store(at, x);
      if (what == kind::all_to_all)
        store(at, bytes(x.begin() + static_cast<std::ptrdiff_t>(mine),
                        x.begin() + static_cast<std::ptrdiff_t>(mine + block())));
      if (sum.empty())
        sum = x;
      else if (what == kind::all_reduce || what == kind::reduce || what == kind::reduce_scatter)
        nccl_double::fold(sum.data(), x.data(), sum.size() / nccl_double::width(type), type, fold);
    }
    if (what == kind::all_reduce || (what == kind::reduce && who->rank == peer)) store(0, sum);
    if (what == kind::reduce_scatter)
      store(0, bytes(sum.begin() + static_cast<std::ptrdiff_t>(mine),
                     sum.begin() + static_cast<std::ptrdiff_t>(mine + block())));
  }

 private:
  void store(std::size_t at, const bytes& x) const {
    if (!x.empty()) std::memcpy(static_cast<char*>(to) + at, x.data(), x.size());
  }
};

thread_local int depth = 0;
thread_local std::vector<std::pair<op, cudaStream_t>> group_ops;

void launch(const std::vector<std::pair<op, cudaStream_t>>& all) {
  std::map<cudaStream_t, std::shared_ptr<std::vector<op>>> by_stream;
  for (const auto& [given, stream] : all) {
    op o = given;
    member& me = *o.who;
    if (o.what == kind::send)
      o.file = me.file("m" + std::to_string(me.sent[o.peer]++) + '.' + std::to_string(me.rank), o.peer);
    else if (o.what == kind::recv)
      o.file = me.file("m" + std::to_string(me.received[o.peer]++) + '.' + std::to_string(o.peer), me.rank);
    else
      o.file = std::to_string(me.collectives++);
    auto& ops = by_stream[stream];
    if (ops == nullptr) ops = std::make_shared<std::vector<op>>();
    ops->push_back(std::move(o));
  }
  for (auto& [stream, ops] : by_stream)
    cuda_double::enqueue_waiting(stream, [jobs = ops, stream = stream] {
      for (const op& o : *jobs) o.give();
      for (const op& o : *jobs) o.take();
      std::map<member*, std::vector<std::string>> files;
      for (const op& o : *jobs)
        if (!o.message()) files[o.who.get()].push_back(o.who->file(o.file, o.who->rank));
      for (auto& [who, own] : files) {
        const std::lock_guard lock(who->mutex);
        for (const std::string& old : std::exchange(who->before[stream], std::move(own))) std::filesystem::remove(old);
      }
    });
}

}  // namespace

struct ncclComm {
  std::shared_ptr<member> me;
};

namespace {

ncclResult_t call(kind what, const void* from, void* to, std::size_t n, ncclDataType_t type, ncclRedOp_t fold, int peer,
                  ncclComm_t comm, cudaStream_t stream) {
  if (n == 0 && what != kind::send && what != kind::recv) return ncclSuccess;
  group_ops.push_back({{what, from, to, n, type, fold, peer, comm->me}, stream});
  if (depth == 0) launch(std::exchange(group_ops, {}));
  return ncclSuccess;
}
ncclComm_t join(std::string name, int size, int rank) {
  auto me = std::make_shared<member>();
  me->name = std::move(name);
  me->size = size;
  me->rank = rank;
  me->device = cuda_double::current_device();
  return new ncclComm{std::move(me)};
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* code) {
  *code = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 0, sizeof *id);
  const char* const place = std::getenv("TMPDIR");
  const int n = std::snprintf(id->internal, sizeof id->internal, "%s/nccl-XXXXXX", place != nullptr ? place : "/tmp");
  return n < static_cast<int>(sizeof id->internal) && mkdtemp(id->internal) != nullptr ? ncclSuccess : ncclSystemError;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
  *comm = join(std::string(id.internal) + "/all", size, rank);
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) {
  *state = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child, ncclConfig_t*) {
  member& me = *comm->me;
  const std::string what = "split" + std::to_string(me.splits++);
  const std::pair<int, int> mine{color, key};
  member::give(me.file(what, me.rank), &mine, sizeof mine);
  int index = 0, size = 0;
  for (int r = 0; r < me.size; ++r) {
    const bytes x = me.take(me.file(what, r), sizeof mine);
    std::pair<int, int> theirs;
    std::memcpy(&theirs, x.data(), sizeof theirs);
    if (theirs.first != color) continue;
    ++size;
    index += std::pair(theirs.second, r) < std::pair(key, me.rank);
  }
  *child = join(me.name + '.' + what + '.' + std::to_string(color) + "c", size, index);
  return ncclSuccess;
}
ncclResult_t ncclMemAlloc(void** memory, std::size_t n) {
  *memory = ::operator new(n, std::align_val_t{NCCL_WIN_REQUIRED_ALIGNMENT});
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void* memory) {
  ::operator delete(memory, std::align_val_t{NCCL_WIN_REQUIRED_ALIGNMENT});
  return ncclSuccess;
}
ncclResult_t ncclCommWindowRegister(ncclComm_t, void*, std::size_t, ncclWindow_t* window, int) {
  *window = nullptr;  // as where there is no symmetric memory
  return ncclSuccess;
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) {
  return ncclInvalidArgument;
}
ncclResult_t ncclCommFinalize(ncclComm_t) {
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->me->aborted = true;
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* n) {
  *n = comm->me->size;
  return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  *device = comm->me->device;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->me->rank;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) {
  return "an error of the stand-in";
}
const char* ncclGetLastError(ncclComm_t) {
  return "";
}
ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--depth == 0) launch(std::exchange(group_ops, {}));
  return ncclSuccess;
}
ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t n, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return call(kind::broadcast, comm->me->rank == root ? from : to, to, n, type, ncclSum, root, comm, stream);
}
ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t n, ncclDataType_t type, ncclRedOp_t fold,
                           ncclComm_t comm, cudaStream_t stream) {
  return call(kind::all_reduce, from, to, n, type, fold, 0, comm, stream);
}
ncclResult_t ncclReduce(const void* from, void* to, std::size_t n, ncclDataType_t type, ncclRedOp_t fold, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return call(kind::reduce, from, to, n, type, fold, root, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t n, ncclDataType_t type, ncclRedOp_t fold,
                               ncclComm_t comm, cudaStream_t stream) {
  return call(kind::reduce_scatter, from, to, n, type, fold, 0, comm, stream);
}
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t n, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return call(kind::all_gather, from, to, n, type, ncclSum, 0, comm, stream);
}
ncclResult_t ncclAlltoAll(const void* from, void* to, std::size_t n, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  return call(kind::all_to_all, from, to, n, type, ncclSum, 0, comm, stream);
}
ncclResult_t ncclSend(const void* from, std::size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call(kind::send, from, nullptr, n, type, ncclSum, peer, comm, stream);
}
ncclResult_t ncclRecv(void* to, std::size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return call(kind::recv, nullptr, to, n, type, ncclSum, peer, comm, stream);
}

}  // extern "C"
