// A reader of the kind of cnpy's: local header after local header until something else comes, each
// member an array. It prints a line for each: reader, file, name, size, CRC-32; or reader, file,
// error.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <zlib.h>

using Bytes = std::string;

static uint32_t number(const Bytes &data, size_t at, int size) {
    uint32_t value = 0;
    while (size--) value = value << 8 | static_cast<unsigned char>(data.at(at + size));
    return value;
}

static Bytes read(std::istream &file, size_t size) {
    Bytes data(size, 0);
    if (!file.read(&data[0], size)) throw std::runtime_error("the file ends early");
    return data;
}

// How many bytes the values have, by the header's text alone.
static size_t values_size(const Bytes &header) {
    size_t begin = header.find("'descr': '") + 10;
    size_t size = std::atoi(header.c_str() + begin + 2);
    if (header.at(begin) != '<' && header.at(begin) != '|') throw std::runtime_error("byte order");
    if (header.at(begin + 1) == 'U') size *= 4;
    begin = header.find('(') + 1;
    std::stringstream shape(header.substr(begin, header.find(')') - begin));
    for (Bytes length; std::getline(shape, length, ',');)
        if (length.find_first_of("0123456789") != Bytes::npos) size *= std::stoull(length);
    return size;
}

static Bytes read_array(std::istream &file) {
    Bytes magic = read(file, 10);
    if (magic.compare(0, 6, "\x93NUMPY") != 0) throw std::runtime_error("not an array");
    Bytes header = read(file, number(magic, 8, 2));
    return magic + header + read(file, values_size(header));
}

static Bytes inflated(const Bytes &data, size_t size) {
    Bytes result(size, 0);
    z_stream stream;
    std::memset(&stream, 0, sizeof stream);
    inflateInit2(&stream, -MAX_WBITS);
    stream.next_in = reinterpret_cast<Bytef *>(const_cast<char *>(data.data()));
    stream.avail_in = data.size();
    stream.next_out = reinterpret_cast<Bytef *>(&result[0]);
    stream.avail_out = size;
    int code = inflate(&stream, Z_FINISH);
    inflateEnd(&stream);
    if (code != Z_STREAM_END || stream.avail_in || stream.avail_out)
        throw std::runtime_error("deflated data of another size");
    std::istringstream array(result);
    if (read_array(array) != result) throw std::runtime_error("an array of another size");
    return result;
}

static Bytes members(const char *path, const Bytes &start) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream lines;
    while (true) {
        Bytes header = read(file, 30);
        if (header.compare(0, 4, "PK\3\4") != 0) return lines.str();
        Bytes name = read(file, number(header, 26, 2));
        read(file, number(header, 28, 2));
        uint32_t method = number(header, 8, 2);
        if (method != 0 && method != 8) throw std::runtime_error("another method");
        Bytes data = method == 0
            ? read_array(file)
            : inflated(read(file, number(header, 18, 4)), number(header, 22, 4));
        lines << start << name << '\t' << data.size() << '\t'
              << crc32(0, reinterpret_cast<const Bytef *>(data.data()), data.size()) << '\n';
    }
}

int main(int count, char **files) {
    for (int i = 1; i < count; i++) {
        Bytes start = Bytes("like cnpy, in C++\t") + files[i] + '\t';
        try {
            std::cout << members(files[i], start);
        } catch (const std::exception &error) {
            std::cout << start << error.what() << '\n';
        }
    }
}
