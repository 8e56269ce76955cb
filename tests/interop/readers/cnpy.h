// A stand-in for cnpy's header: what the guide's code uses of its interface, on the reader in
// reader.cpp, which goes from front to back as cnpy does.

#define main main_of_reader
#include "reader.cpp"
#undef main
#include <map>
#include <vector>

namespace cnpy {

struct NpyArray {
    std::vector<size_t> shape;
    size_t word_size;
    bool fortran_order;
    Bytes values;

    template <typename T> std::vector<T> as_vec() const {
        const T *begin = reinterpret_cast<const T *>(values.data());
        return std::vector<T>(begin, begin + values.size() / sizeof(T));
    }
};

inline NpyArray parsed(const Bytes &npy) {
    Bytes header = npy.substr(10, number(npy, 8, 2));
    NpyArray array;
    std::stringstream shape(header.substr(header.find('(') + 1));
    for (size_t length; shape >> length; shape.ignore(1)) array.shape.push_back(length);
    array.word_size = std::atoi(header.c_str() + header.find("'descr': '") + 12);
    array.fortran_order = header.find("'fortran_order': True") != Bytes::npos;
    array.values = npy.substr(10 + header.size());
    return array;
}

inline std::map<std::string, NpyArray> npz_load(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    std::map<std::string, NpyArray> arrays;
    while (true) {
        Bytes header = read(file, 30);
        if (header.compare(0, 4, "PK\3\4") != 0) return arrays;
        Bytes name = read(file, number(header, 26, 2));
        read(file, number(header, 28, 2));
        arrays[name.substr(0, name.size() - 4)] = parsed(
            number(header, 8, 2) == 0
                ? read_array(file)
                : inflated(read(file, number(header, 18, 4)), number(header, 22, 4)));
    }
}

}  // namespace cnpy
