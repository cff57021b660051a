"""Files of OpenFst 1.7.9 (Debian's libfst-tools).

HCL: `fstconvert --fst_type=olabel_lookahead --save_relabel_opairs=relabel` of a tree of
seven words, w1 ... w7. NGRAM: `fstconvert --fst_type=ngram` of a bigram model with the
words of `relabel`; it has symbols. ACCEPTOR: `fstrelabel --relabel_ipairs=relabel` of
the same model, `const`, which gives out 1 ... 7. HCLG: `fstcompose` of HCL and NGRAM.
"""

import base64
import zlib

#: Words by their new numbers.
WORDS = {"<eps>": 0, "w1": 1, "w4": 2, "w6": 3, "w7": 4, "w5": 5, "w3": 6, "w2": 7}
HCL = (
    "c-ozmze~eV5XWEAw2l3tt)ikLQlyH5gM)*EIjrE|V4Xxn(9~9g##U@WT&hmuAkv{Yy1DD%Kj5TPP"
    ">`;j9Ncvgiss=<y&ew~AC!B1?(Tb+yQJ0nbuq#i%h_fsW3Sk`+?Hu&%(U*Xe8J47&E2%ZzK_B#7s"
    "?sNKE+|=EInQHRvkUBb6?A4^93xT5)t>b3p+x@v?hCapdscFOmEy7Qw0k)?msLnVQq*hf<+~99TL"
    "_lVcinF9!XrEB(7f)Hy~j#N$#K|E-qoiB-dT)QF$5^<eNX;0}ahJvN!=AH2c?~D?>&8xzrALk^iH"
    "(2|mZVD}Ja{Cb|Bd$T^u}fcN|Im;k?HEflYcc+P9dQD9B|of{#?ZlHMF-)u+)zT0)=*GN3?_g>7v"
    "DutW+8PjbDkbZoq{>)7tbmI4;dDfEK&_e3#WFFjKaeiF)t^RB<l+XP^q8}jnL6OgUiu+=K^I_b8F"
    "sUCx`%0{4pq1!_$$VOcKA+QZ*M5`!?YjjL(jWeomd_GKl;}rDKT)C2XP&o8;`yBlI{HIUkmUo@33"
    "Fdkm-$4DikMe${K9L3D@0EvOhx**hX0>TrYB>vp8v{Z&-NSp0tnofKm"
)
NGRAM = (
    "c-p)6cT*iJ0|P@|dQoC72ar)*l9-p0Sd_v7WHSRXBSUEDQdJNQ0h|n|pyc<aI$j`Mo?nzw9G{n3u"
    "2)h~A_kS@hSDG#Y*Gt~?O?i?KspQ=k$EOe$UHM<WS%(-GS8G1nP<#~%rjy~;wc-zTnjSIrr1sd$^"
    "{u`qhD+%I-EQKQznMwUJ&>Tb;ZA^^l}ir7ApQ92pAY3G0Oxso&~B8<Q$kI@X50w$)l@bg380h*pb"
    "viyxUN}&fU?$DS_9)kmHX1j65L+zoZTJwf43S|E~P7KkhAV4^qX}c+~#S%7^y0T-R-ljX&GR^eZ{"
    "Ibf2*=wAFHu))#e15?BG$bJU*e`eOThA!~<sHTUg5U1D`;7rSZa#dFF2{P)ZDak~^9WTT$gfBDPe"
    "@L~Bkd)-ZE?M>sP99DgFa#-iC>F^`C*<O|HAlN<t^N(<|"
)
ACCEPTOR = (
    "c-p)6cT*iJ0|P^HeqM122ar)*l9-p0Sd_xV00E2)VN;i;GQa^Rl$L{wG}MDgCa_uvW@|iZ58|^Uv"
    "@yi=D>;DlvLLDZv+|)mFOX(N5(AkhfTqrt>$<H7njIi@Vp#M_qUkj@{%kLc#Aifu(>ixY2e5mg=D"
    "e%9Z;xz;OZORjW~jX&GYf6C99W@hL3*V1MIG3oav(ZMV1+#>3|XPL*8ZqH8<P24*B8UX1w`iySv#"
    ";Gx#!=NANGt$=Id@cYmaQcX`GY;2a^6(ADvM2J0<WsAp7&vB~}My_qU7Pv|~k5f81N#9$Ec5cTE)"
    "aKZ2X>S&`hY%68D62}!>p#~rYKn0hasOZLd-*V@}UAj^OG%i@4+-iPJiP|TZ=C**+a|MTB3qxe5="
    "m!bo5_{v5-0f#RP_$6%sy9WU5H%jd"
)
HCLG = (
    "c-n<lT}V@57~ZCv%bY(`H|O7+IyL`Ijfl?P&k-gTDkWiIq~^~sf1nxFMVf?(RESq~)1?>QM0gQ&("
    "?wxXP3XevqCi9<$bz7R5*_VZ=jglF7d&vzxAVOJ@B4h;*@vz9QKL?$yEr`LA2El1_(wX2x;rm-8+"
    "89Ky{>n5wnw*pRj6zKHga=JJ`G{r|F^^pDyGRy;|mZSTB8vr^~^+1VzEe1^B2$PB{G;b^o%05sf?"
    "bT!5j>hq2_{Xb254^2FqhGx0;_GVMRo5b8ZESQBO6!QpR67gH<xvK?bW~utN-Xn8A*aKDSTj3We!"
    "a9W#$(jK6vYYhbWO20O`MO$^q;V5b<Ym0(KjN97E|@ixZx9Kouqe?dF4(`?Tp9%xtx<FAXsx*4pO"
    "!F&XhvoVG4)>Wg>?`&z^qvLhLfcD&%cV3XW`PBEtKtS2aGjv$MN_a18HWO<}!l>3G*XQer!i4<Qj"
    "6H=IluP{+KbVRCDAbQjM;Bn9YA<anv)n?S3EDBVZVM<<_FA>s2!4b8C|+Zn0pdbyFY<3h@mucQ_g"
    "F$}ACj9;fBpuCAs*#7m>*DL)Od33d+8Jjs2|JCgOEt#nTdZ{&l~mKH)DY$ly8-J0IZ}Rv1mRIhO9"
    "#4o~*ZFC0!(={?9+WAW~5Ot+#SSD$4K0x({r`e;krStq1HRe+!vc8nKT@`Mo+}2Ltjqu(=2h)X(M"
    "SAD~C`llHP-0rma&){-Y3*$2OmLk9Bi?XU>!U)pDqe5}NOvN|t$P1Wgk@gs}Wn?m@JP3DKcA??#%"
    "kCVi+p>xjL(E~X|ZYO+kk@#td|6WlcauNTpoW2Wr$lt`*w~7PxC%E(nFh8z7vq$h_s;(`}k7$*@l"
    "eV)WAH}=<sVX9#v*%7kyt$tNC4<zHiRR}vxxh{MRzT*HMfg@o>d!|0{Jt4a5s^E|JaUl!r0qH!Ao"
    ";l%eqsCEJ@#WU$v=<0=OcbCH<v*I`c_Y@IYbGXPnG#I7zlq#NxlVyKV?K-i2OBmJqG;Wpmnu298c"
    "SC@2@3AobNY4*|mSlNj=4={*BT8i1|x-$sY45CH*biV?N~!fBpe<**(A"
)


def write_files(folder):
    """Write HCL.fst, G.fst (NGRAM), A.fst (ACCEPTOR) and HCLG.fst."""
    for name, text in (("HCL", HCL), ("G", NGRAM), ("A", ACCEPTOR), ("HCLG", HCLG)):
        raw = zlib.decompress(base64.b85decode(text))
        (folder / f"{name}.fst").write_bytes(raw)
    return folder
