// Java's readers of zip archives: the files in the arguments, and a line for each member.
// reader, file, name, size, CRC-32 (the last two empty where only names are listed); or reader,
// file, error.

import java.io.FileInputStream;
import java.io.InputStream;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.Collections;
import java.util.spi.ToolProvider;
import java.util.zip.CRC32;
import java.util.zip.ZipEntry;
import java.util.zip.ZipFile;
import java.util.zip.ZipInputStream;

public class Reader {
    interface Read {
        void read(String file, Found found) throws Exception;
    }

    static class Found {
        final StringBuilder lines = new StringBuilder();
        final String start;

        Found(String reader, String file) {
            start = reader + "\t" + file + "\t";
        }

        void add(String name, InputStream stream) throws Exception {
            byte[] data = stream.readAllBytes();
            CRC32 crc = new CRC32();
            crc.update(data);
            lines.append(start + name + "\t" + data.length + "\t" + crc.getValue() + "\n");
        }
    }

    static void jar(String file, Found found) {
        StringWriter out = new StringWriter(), err = new StringWriter();
        ToolProvider jar = ToolProvider.findFirst("jar").orElseThrow();
        int code = jar.run(new PrintWriter(out), new PrintWriter(err), "tf", file);
        if (code != 0 || !err.toString().isEmpty()) throw new RuntimeException(code + " " + err);
        out.toString().lines().forEach(name -> found.lines.append(found.start + name + "\t\t\n"));
    }

    static void zipFile(String file, Found found) throws Exception {
        try (ZipFile zip = new ZipFile(file)) {
            for (ZipEntry entry : Collections.list(zip.entries())) {
                found.add(entry.getName(), zip.getInputStream(entry));
            }
        }
    }

    static void zipInputStream(String file, Found found) throws Exception {
        try (ZipInputStream zip = new ZipInputStream(new FileInputStream(file))) {
            for (ZipEntry entry; (entry = zip.getNextEntry()) != null; ) {
                found.add(entry.getName(), zip);
            }
        }
    }

    static String run(String reader, Read read, String file) {
        Found found = new Found(reader, file);
        try {
            read.read(file, found);
            return found.lines.toString();
        } catch (Exception error) {
            return found.start + error.toString().replaceAll("\\s+", " ") + "\n";
        }
    }

    public static void main(String[] files) throws Exception {
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        for (String file : files) {
            out.print(run("jar", Reader::jar, file));
            out.print(run("Java ZipFile", Reader::zipFile, file));
            out.print(run("Java ZipInputStream", Reader::zipInputStream, file));
        }
    }
}
