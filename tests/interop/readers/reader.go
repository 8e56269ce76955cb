// Go's reader of zip archives: the files in the arguments, and a line for each member: reader,
// file, name, size, CRC-32; or reader, file, error.
package main

import (
	"archive/zip"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

func members(file string) (lines string, err error) {
	archive, err := zip.OpenReader(file)
	if err != nil {
		return "", err
	}
	defer archive.Close()
	for _, member := range archive.File {
		stream, err := member.Open()
		if err != nil {
			return "", err
		}
		data, err := io.ReadAll(stream)
		if err != nil {
			return "", err
		}
		crc := crc32.ChecksumIEEE(data)
		lines += fmt.Sprintf("Go archive/zip\t%s\t%s\t%d\t%d\n", file, member.Name, len(data), crc)
	}
	return lines, nil
}

func main() {
	for _, file := range os.Args[1:] {
		lines, err := members(file)
		if err != nil {
			lines = fmt.Sprintf("Go archive/zip\t%s\t%v\n", file, err)
		}
		fmt.Print(lines)
	}
}
