// heddle/io/s3/signature.hpp: AWS's signature, version 4, of a request.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::io::detail {

/// SHA-256, as 32 bytes. Source: FIPS 180-4.
inline std::string sha256(std::string_view text) {
  constexpr std::array<std::uint32_t, 64> k{
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
  std::array<std::uint32_t, 8> h{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::string all(text);
  all += '\x80';
  while (all.size() % 64 != 56) all += '\0';
  for (int shift = 56; shift >= 0; shift -= 8)
    all += static_cast<char>(static_cast<std::uint64_t>(text.size()) * 8 >> shift & 0xff);
  for (std::size_t at = 0; at < all.size(); at += 64) {
    std::array<std::uint32_t, 64> w{};
    for (std::size_t i = 0; i < 64; ++i) w[i / 4] = w[i / 4] << 8 | static_cast<unsigned char>(all[at + i]);
    for (std::size_t i = 16; i < 64; ++i) {
      const std::uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
    }
    auto s = h;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t one = s[7] + (std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25)) +
                                ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
      const std::uint32_t two = (std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22)) +
                                ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      s = {one + two, s[0], s[1], s[2], s[3] + one, s[4], s[5], s[6]};
    }
    for (std::size_t i = 0; i < 8; ++i) h[i] += s[i];
  }
  std::string bytes;
  for (const std::uint32_t word : h)
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(word >> shift & 0xff);
  return bytes;
}
/// HMAC-SHA-256. Source: RFC 2104.
inline std::string hmac_sha256(std::string_view key, std::string_view text) {
  std::string block = key.size() > 64 ? sha256(key) : std::string(key);
  block.resize(64, '\0');
  std::string inner, outer;
  for (const char c : block) {
    inner += static_cast<char>(c ^ 0x36);
    outer += static_cast<char>(c ^ 0x5c);
  }
  return sha256(outer + sha256(inner.append(text)));
}
inline std::string hex_text(std::string_view bytes) {
  std::string out;
  for (const char c : bytes)
    for (const int half : {static_cast<unsigned char>(c) >> 4, c & 15})
      out += "0123456789abcdef"[static_cast<std::size_t>(half)];
  return out;
}

/// As in "20130524T000000Z".
inline std::string signature_date(std::time_t when) {
  std::tm parts{};
  ::gmtime_r(&when, &parts);
  std::array<char, 32> text{};
  return std::string(text.data(), std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &parts));
}

/// What the header Authorization says of a request. Path and query are as they are sent, the query's names sorted, each
/// with an '='; names of headers in small letters, sorted, with x-amz-date among them. `payload`: the hash that
/// x-amz-content-sha256 has.
/// Source: Amazon S3 API reference, 2006-03-01, "Authenticating requests: using the Authorization header".
inline std::string signature_of(std::string_view method, std::string_view path, std::string_view query,
                                const std::vector<std::pair<std::string, std::string>>& headers,
                                std::string_view payload, std::string_view region, std::string_view access_key,
                                std::string_view secret_key) {
  std::string request, names, date;
  ((((request += method) += '\n') += path) += '\n') += query;
  request += '\n';
  for (const auto& [name, value] : headers) {
    request += name + ":" + value + "\n";
    names += (names.empty() ? "" : ";") + name;
    if (name == "x-amz-date") date = value;
  }
  (request += "\n" + names + "\n") += payload;
  const std::string day = date.substr(0, 8), scope = day + "/" + std::string(region) + "/s3/aws4_request";
  std::string key = "AWS4" + std::string(secret_key);
  for (const std::string_view part :
       {std::string_view(day), region, std::string_view("s3"), std::string_view("aws4_request")})
    key = hmac_sha256(key, part);
  const std::string text = "AWS4-HMAC-SHA256\n" + date + "\n" + scope + "\n" + hex_text(sha256(request));
  return "AWS4-HMAC-SHA256 Credential=" + std::string(access_key) + "/" + scope + ",SignedHeaders=" + names +
         ",Signature=" + hex_text(hmac_sha256(key, text));
}

}  // namespace heddle::inline v0::io::detail
