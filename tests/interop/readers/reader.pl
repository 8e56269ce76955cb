# Perl's readers of zip archives: the files in the arguments, and a line for each member: reader,
# file, name, size, CRC-32; or reader, file, error; or, if a package is not installed, reader,
# "missing".

use strict;
use warnings;

# Each reader gets a file and returns the name and the data of each member.
sub archive_zip {
    my ($file) = @_;
    my $zip = Archive::Zip->new;
    $zip->read($file) == Archive::Zip::AZ_OK() or die "cannot be read\n";
    my @found;
    for my $member ($zip->members) {
        my ($data, $status) = $member->contents;
        $status == Archive::Zip::AZ_OK() or die "cannot be read\n";
        push @found, [$member->fileName, $data];
    }
    return @found;
}

sub io_uncompress {
    my ($file) = @_;
    my $zip = IO::Uncompress::Unzip->new($file, Strict => 1, Transparent => 0)
        or die $IO::Uncompress::Unzip::UnzipError . "\n";
    my @found;
    for (my $status = 1; $status > 0; $status = $zip->nextStream) {
        my ($data, $part) = ('');
        while (($status = $zip->read($part)) > 0) { $data .= $part }
        $status == 0 or die $IO::Uncompress::Unzip::UnzipError . "\n";
        push @found, [$zip->getHeaderInfo->{Name}, $data];
    }
    return @found;
}

my %readers = (
    'Perl Archive::Zip'          => ['Archive::Zip', \&archive_zip],
    'Perl IO::Uncompress::Unzip' => ['IO::Uncompress::Unzip', \&io_uncompress],
);

for my $reader (sort keys %readers) {
    my ($package, $read) = @{ $readers{$reader} };
    if (!eval "require $package; require Compress::Zlib; 1") {
        print "$reader\tmissing\n";
        next;
    }
    Archive::Zip::setErrorHandler(sub { }) if $package eq 'Archive::Zip';
    for my $file (@ARGV) {
        my @found = eval { $read->($file) };
        if ($@) {
            print "$reader\t$file\t" . ($@ =~ s/\s+/ /gr) . "\n";
            next;
        }
        for (@found) {
            my ($name, $data) = @$_;
            utf8::encode($name) if utf8::is_utf8($name);
            print join("\t", $reader, $file, $name, length $data, Compress::Zlib::crc32($data)), "\n";
        }
    }
}
