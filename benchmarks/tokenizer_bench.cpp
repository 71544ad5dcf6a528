// benchmarks/tokenizer_bench.cpp: encoding and decoding on one thread, beside Hugging Face's `tokenizers` package.
//
//   tokenizer_bench <tokenizer.json> <text> [characters of a document = 4000] [repetitions = 5]
//
// The package is run by benchmarks/tokenizer_package.py, with the Python that HEDDLE_TOKENIZERS_PYTHON names (python3 by
// default), between heddle's first and second half of the repetitions; both must find the same ids. Without it only heddle is measured. Bytes are those of the text; 1 MB = 10^6 bytes.
#include <heddle/io/tokenizer/load.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace io = heddle::io;

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void row(const char* what, std::vector<double> seconds, double bytes) {
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  std::printf("| %-36s | %7.1f | %7.1f to %.1f |\n", what, bytes / median * 1e-6, bytes / seconds.back() * 1e-6,
              bytes / seconds.front() * 1e-6);
}

std::string output_of(const std::string& command) {
  std::string out;
  if (FILE* pipe = ::popen(command.c_str(), "r")) {
    char part[4096];
    for (std::size_t n; (n = std::fread(part, 1, sizeof part, pipe)) > 0;) out.append(part, n);
    ::pclose(pipe);
  }
  return out;
}

int run(int argc, char** argv) {
  if (argc < 3) {
    std::printf("usage: tokenizer_bench <tokenizer.json> <text> [characters] [repetitions]\n");
    return 0;
  }
  const std::string file = argv[1], path = argv[2];
  const std::size_t characters = argc > 3 ? std::stoul(argv[3]) : 4000;
  const int repetitions = (std::max)(2, argc > 4 ? std::atoi(argv[4]) : 5);
  const std::string text = io::detail::whole_file(path);
  const double begin = now();
  const io::tokenizer t = io::load_tokenizer(file);
  std::printf("loaded in %.0f ms\n", (now() - begin) * 1e3);

  std::vector<std::string_view> documents;
  for (std::size_t at = 0, n = 0, start = 0; at < text.size();) {
    at += io::detail::sequence_length(text[at]);
    if (++n == characters || at >= text.size()) {
      documents.push_back(std::string_view(text).substr(start, at - start));
      start = at, n = 0;
    }
  }

  std::vector<double> encoding, decoding;
  std::vector<std::vector<io::token_id>> ids(documents.size());
  const auto measure = [&](int times) {
    for (int r = 0; r < times; ++r) {
      const double start = now();
      for (std::size_t d = 0; d < documents.size(); ++d) ids[d] = t.encode(documents[d], {.add_special_tokens = false});
      encoding.push_back(now() - start);
      std::size_t bytes = 0;
      const double middle = now();
      for (const auto& of : ids) bytes += t.decode(of).size();
      decoding.push_back(now() - middle);
      if (bytes < text.size() / 2) std::printf("decoded %zu bytes of %zu\n", bytes, text.size());
    }
  };
  measure(repetitions / 2);
  std::string script = __FILE__;
  script = script.substr(0, script.rfind('/') + 1) + "tokenizer_package.py";
  const char* python = std::getenv("HEDDLE_TOKENIZERS_PYTHON");
  const std::string other =
      output_of("'" + std::string(python != nullptr ? python : "python3") + "' '" + script + "' '" + file + "' '" +
                path + "' " + std::to_string(characters) + " " + std::to_string(repetitions));
  measure(repetitions - repetitions / 2);

  std::size_t count = 0;
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const auto& of : ids)
    for (const io::token_id id : of) {
      ++count;
      hash = (hash ^ static_cast<std::uint64_t>(id)) * 0x100000001b3U;
    }
  std::printf("%zu documents, %zu bytes, %zu tokens\n\n| | MB/s | from, to |\n|---|--:|--:|\n", documents.size(),
              text.size(), count);
  const auto bytes = static_cast<double>(text.size());
  row("heddle, encode", encoding, bytes);
  row("heddle, decode", decoding, bytes);
  std::istringstream in(other);
  std::size_t their_count = 0;
  std::string their_hash, times;
  if (!(in >> their_count >> their_hash)) return 0;
  std::vector<double> cold, warm;
  while (in >> times) {
    cold.push_back(std::stod(times));
    warm.push_back(std::stod(times.substr(times.find('/') + 1)));
  }
  row("tokenizers, encode, new", cold, bytes);
  row("tokenizers, encode, its cache filled", warm, bytes);
  char ours[17];
  std::snprintf(ours, sizeof ours, "%016llx", static_cast<unsigned long long>(hash));
  const bool same = their_count == count && their_hash == ours;
  std::printf("\nids are %s\n", same ? "the same" : "DIFFERENT");
  return same ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
