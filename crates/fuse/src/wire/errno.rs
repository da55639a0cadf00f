//! Error numbers of the kernel. Plain values.

use std::fmt;

/// An error number, positive as in `errno.h`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

impl Errno {
    /// Returns the error of this number; `EIO` for one that the kernel does not accept (it accepts
    /// 1 to 511 from a file system).
    pub const fn new(code: i32) -> Self {
        if code > 0 && code < 512 { Self(code) } else { Self::EIO }
    }

    /// The number.
    pub const fn code(self) -> i32 {
        self.0
    }
}

macro_rules! errors {
    ($($name:ident),* $(,)?) => {
        impl Errno {
            $(
                #[doc = concat!("`", stringify!($name), "`.")]
                pub const $name: Self = Self(libc::$name);
            )*
        }

        impl fmt::Debug for Errno {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $(libc::$name => f.write_str(stringify!($name)),)*
                    code => write!(f, "Errno({code})"),
                }
            }
        }
    };
}

errors! {
    E2BIG, EACCES, EBADF, EBUSY, EDQUOT, EEXIST, EFBIG, EINTR, EINVAL, EIO, EISDIR, ELOOP, EMFILE, EMLINK, ENAMETOOLONG,
    ENFILE, ENODATA, ENOENT, ENOMEM, ENOSPC, ENOSYS, ENOTDIR, ENOTEMPTY, ENOTTY, ENXIO, EOPNOTSUPP, EOVERFLOW, EPERM,
    ERANGE, EROFS, ESTALE, ETXTBSY, EXDEV,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_the_kernel_refuses_becomes_an_input_output_error() {
        for code in [0, -5, 512, i32::MIN, i32::MAX] {
            assert_eq!(Errno::new(code), Errno::EIO);
        }
        assert_eq!((Errno::new(511).code(), Errno::new(libc::ENOENT)), (511, Errno::ENOENT));
        assert_eq!(
            (format!("{:?}", Errno::ENOENT), format!("{:?}", Errno::new(300))),
            ("ENOENT".into(), "Errno(300)".into())
        );
    }
}
