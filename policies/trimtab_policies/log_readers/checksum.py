"""CRC-32C (Castagnoli), masked as in TFRecord files."""

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8


def _table() -> tuple[int, ...]:
    entries: list[int] = []
    for value in range(256):
        remainder = value
        for _ in range(8):
            remainder = (remainder >> 1) ^ (_POLYNOMIAL if remainder & 1 else 0)
        entries.append(remainder)
    return tuple(entries)


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """The checksum of RFC 3720."""
    remainder, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        remainder = table[(remainder ^ byte) & 0xFF] ^ (remainder >> 8)
    return remainder ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """The checksum as TFRecord stores it: rotated by 15 bits, plus a constant."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF
