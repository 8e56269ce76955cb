<?php
// PHP's reader of zip archives, which is libzip: the files in the arguments, and a line for each
// member: reader, file, name, size, CRC-32; or reader, file, error.

if (!class_exists('ZipArchive')) {
    echo "PHP ZipArchive\tmissing\n";
    exit;
}

function members(string $file): string
{
    $zip = new ZipArchive();
    $code = $zip->open($file, ZipArchive::CHECKCONS);
    if ($code !== true) {
        return "PHP ZipArchive\t$file\terror $code\n";
    }
    $lines = '';
    for ($i = 0; $i < $zip->numFiles; $i++) {
        $data = $zip->getFromIndex($i);
        if ($data === false) {
            return "PHP ZipArchive\t$file\t" . $zip->getStatusString() . "\n";
        }
        $row = ['PHP ZipArchive', $file, $zip->getNameIndex($i), strlen($data), crc32($data)];
        $lines .= implode("\t", $row) . "\n";
    }
    return $lines;
}

foreach (array_slice($argv, 1) as $file) {
    echo members($file);
}
