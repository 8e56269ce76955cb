"""What Windows does and wine 8 does not: Windows' own Python reads this when it starts.

- Wine's ``_locking`` sets no errno where a byte is locked; Microsoft documents EACCES.
- Wine opens no file for its attributes alone while it is mapped for writing, so ``os.stat`` of
  its path has no ``st_ino``. Windows does not ask who shares the file then.
- Wine ends a program that calls ``CopyFile2``, which `shutil.copy2` does if it is there.
"""

import errno
import os
import stat

if os.name == "nt":
    import _winapi
    import msvcrt
    import nt

    locking_of_wine, stat_of_wine = msvcrt.locking, os.stat

    def locking(descriptor, mode, size):
        try:
            return locking_of_wine(descriptor, mode, size)
        except OSError as error:
            if error.errno == 0:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None
            raise

    def stat_by_descriptor(path, *args, **options):
        found = stat_of_wine(path, *args, **options)
        if found.st_ino or isinstance(path, int) or not stat.S_ISREG(found.st_mode):
            return found
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)

    del _winapi.CopyFile2
    msvcrt.locking = locking
    os.stat = nt.stat = stat_by_descriptor
